"""Sending with psycopg: `outbox.transaction` sees the commit."""

from __future__ import annotations

import logging
import subprocess
import sys

import psycopg
import pytest
from psycopg.rows import dict_row

from outspark.errors import TransactionRequired
from tests.integration.outbox.jeap.harness import Harness, bodies, message, messages
from tests.integration.outbox.jeap.test_sessions import DIE_AT_COMMIT, REFUSE_AT_COMMIT, REFUSE_MARK


@pytest.fixture(params=["autocommit", "explicit"])
def conn(request: pytest.FixtureRequest, harness: Harness) -> psycopg.Connection:
    conn = harness.database.connect()
    conn.autocommit = request.param == "autocommit"
    return conn


def test_committed_messages_are_sent_and_marked(harness: Harness, conn: psycopg.Connection) -> None:
    outbox = harness.outbox()
    conn.row_factory = dict_row  # type: ignore[assignment]
    with outbox.transaction(conn) as tx:
        ids = tx.send(*messages(2))
        [scheduled] = tx.send_scheduled(message(b"later"))
        assert harness.rows() == []

    rows = harness.rows()
    assert [row.id for row in rows] == [*ids, scheduled]
    assert [row.sent_immediately is not None for row in rows] == [True, True, False]
    assert all(40 <= row.hold < 45 for row in rows[:2])
    assert harness.ready() == [scheduled]
    assert harness.posted("immediate") == {"committed": 2}
    assert harness.posted("scheduled") == {"committed": 1}
    assert harness.transmitted() == 2
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


@pytest.mark.parametrize("error", [ValueError, psycopg.Rollback])
def test_what_is_rolled_back_is_never_sent(
    harness: Harness, conn: psycopg.Connection, error: type[Exception]
) -> None:
    outbox = harness.outbox()

    def fail() -> None:
        with outbox.transaction(conn) as tx:
            tx.send(message())
            tx.send_scheduled(message())
            raise error

    if error is psycopg.Rollback:
        fail()
    else:
        with pytest.raises(error):
            fail()
    assert harness.rows() == []
    assert harness.posted("immediate") == {"rolled_back": 1}
    assert harness.posted("scheduled") == {"rolled_back": 1}
    assert harness.transmitted() == 0


def test_a_savepoint_that_is_rolled_back_takes_its_messages_with_it(
    harness: Harness, conn: psycopg.Connection
) -> None:
    outbox = harness.outbox()
    with outbox.transaction(conn) as tx:
        tx.send(message(b"before"))
        with conn.transaction(force_rollback=True):
            tx.send(message(b"within"))
        with conn.transaction():
            tx.send(message(b"after"))

    assert bodies(harness.rows()) == [b"before", b"after"]
    assert all(row.sent_immediately for row in harness.rows())
    assert harness.posted("immediate") == {"committed": 2, "rolled_back": 1}


def test_a_commit_that_the_database_refuses_is_a_rollback(harness: Harness, conn: psycopg.Connection) -> None:
    outbox = harness.outbox()
    harness.database.connect().execute(REFUSE_AT_COMMIT)
    with pytest.raises(psycopg.errors.RaiseException), outbox.transaction(conn) as tx:
        tx.send(message())

    assert harness.posted("immediate") == {"rolled_back": 1}
    assert harness.transmitted() == 0


def test_nobody_knows_about_a_commit_in_which_the_connection_is_lost(
    harness: Harness, conn: psycopg.Connection
) -> None:
    outbox = harness.outbox()
    harness.database.connect().execute(DIE_AT_COMMIT)
    with pytest.raises(psycopg.OperationalError), outbox.transaction(conn) as tx:
        tx.send(message())

    assert harness.posted("immediate") == {"unknown": 1}
    assert harness.transmitted() == 0


def test_nothing_is_raised_when_a_message_cannot_be_marked(
    harness: Harness, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = harness.outbox()
    harness.database.connect().execute(REFUSE_MARK)
    with caplog.at_level(logging.ERROR), outbox.transaction(conn) as tx:
        tx.send(message())

    assert harness.row().waits
    assert "left to the relay" in caplog.text
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_an_error_that_is_kept_quiet_is_a_rollback(harness: Harness, conn: psycopg.Connection) -> None:
    outbox = harness.outbox()

    def post(*, immediate: bool) -> None:
        with outbox.transaction(conn) as tx:
            (tx.send if immediate else tx.send_scheduled)(message())
            with pytest.raises(psycopg.errors.UndefinedColumn):
                conn.execute("SELECT nothing")

    post(immediate=False)
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        post(immediate=True)

    assert harness.rows() == []
    assert harness.posted("scheduled") == {"rolled_back": 1}
    assert harness.posted("immediate") == {"rolled_back": 1}


def test_a_pipeline_leaves_its_messages_to_the_relay(harness: Harness, conn: psycopg.Connection) -> None:
    """It has not heard of its commit when the transaction is left."""
    outbox = harness.outbox()
    with conn.pipeline(), outbox.transaction(conn) as tx:
        tx.send(message())

    assert harness.row().waits
    assert 20 <= harness.row().hold < 21
    assert harness.posted("immediate") == {"unknown": 1}


def test_a_transaction_must_be_its_own(harness: Harness, conn: psycopg.Connection) -> None:
    outbox = harness.outbox()
    with conn.transaction():
        with pytest.raises(TransactionRequired, match="is in one already"):
            outbox.transaction(conn).__enter__()


def test_a_bare_connection_takes_only_scheduled_messages(harness: Harness, conn: psycopg.Connection) -> None:
    outbox = harness.outbox()
    with conn.transaction():
        with pytest.raises(TransactionRequired, match=r"outbox\.transaction\(conn\)"):
            outbox.send(conn, message())  # type: ignore[arg-type]
        [id] = outbox.send_scheduled(conn, message())

    assert harness.ready() == [id]
    assert harness.posted("scheduled") == {"unknown": 1}


def test_a_scheduled_message_needs_a_transaction(harness: Harness) -> None:
    outbox = harness.outbox()
    conn = harness.database.connect()
    with pytest.raises(TransactionRequired, match=r"send_scheduled needs a transaction.*conn\.transaction"):
        outbox.send_scheduled(conn, message())
    conn.autocommit = False
    outbox.send_scheduled(conn, message())
    assert harness.rows() == []
    conn.commit()
    assert harness.row().waits


def test_a_cursor_stands_for_its_connection(harness: Harness, conn: psycopg.Connection) -> None:
    with conn.transaction():
        [id] = harness.outbox().send_scheduled(conn.cursor(), message())

    assert harness.ready() == [id]


HUNG = """
import os, sys, time
from datetime import timedelta
import psycopg
from outspark.outbox.jeap import JeapOutbox, NewMessage

outbox = JeapOutbox(destination={"type": "stdout"}, immediate_timeout=timedelta(seconds=0.5))
with psycopg.connect(sys.argv[1]) as conn:
    started = time.monotonic()
    with outbox.transaction(conn) as tx:
        tx.send(NewMessage("t", b"x" * 1_000_000, "T"))
    held = time.monotonic() - started
sys.stderr.write(f"held {held}")
sys.stderr.flush()
os._exit(0)
"""


def test_a_publisher_that_hangs_for_ever_does_not_hold_its_caller(harness: Harness) -> None:
    """Nobody reads what the process writes, so that its publisher is stuck in the full pipe."""
    with subprocess.Popen(
        [sys.executable, "-c", HUNG, harness.database.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        *_, held = process.stderr.read().decode().rpartition("held ")
        assert process.wait(30) == 0

    assert 0.5 <= float(held) < 5
    assert harness.row().waits
