"""Handlers that hang, die, commit, or leave a mess: their effects appear once, and their neighbours do not suffer."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outspark.contracts.omnibox.inbox_maintenance import InboxMaintenance
from outspark.database.names import TableName
from outspark.errors import HandlerHung
from outspark.inbox import InboxEvent, Worker
from outspark.inbox.handling.transaction import ENDED_BY_ITSELF, LEFT_ABORTED
from outspark.observability.metrics import INBOX_HUNG_TOTAL
from tests.integration.inbox.harness import Harness, message, messages, write
from tests.waiting import wait_for

pytestmark = pytest.mark.faults

NEIGHBOURS = ["a", "b", "bad", "c", "d"]


def commit(conn: psycopg.Connection[Any]) -> None:
    conn.commit()


def commit_in_sql(conn: psycopg.Connection[Any]) -> None:
    conn.execute("COMMIT")


def commit_and_swallow(conn: psycopg.Connection[Any]) -> None:
    try:
        conn.execute("COMMIT")
    except psycopg.Error:
        return


def commit_and_begin(conn: psycopg.Connection[Any]) -> None:
    commit_and_swallow(conn)
    conn.execute("BEGIN")


def roll_back(conn: psycopg.Connection[Any]) -> None:
    conn.rollback()


def roll_back_in_sql(conn: psycopg.Connection[Any]) -> None:
    conn.execute("ROLLBACK")


def roll_back_and_begin(conn: psycopg.Connection[Any]) -> None:
    conn.execute("ROLLBACK")
    conn.execute("BEGIN")


def roll_back_write_and_commit(conn: psycopg.Connection[Any]) -> None:
    conn.execute("ROLLBACK")
    write(conn, "bad")
    conn.execute("COMMIT")


def leave_aborted(conn: psycopg.Connection[Any]) -> None:
    try:
        conn.execute("SELECT 1 / 0")
    except psycopg.Error:
        return


def close(conn: psycopg.Connection[Any]) -> None:
    conn.close()


def end_session(conn: psycopg.Connection[Any]) -> None:
    conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def leave(conn: psycopg.Connection[Any]) -> None:
    sys.exit(3)


MISDEEDS = [
    commit,
    commit_in_sql,
    commit_and_swallow,
    commit_and_begin,
    roll_back,
    roll_back_in_sql,
    roll_back_and_begin,
    roll_back_write_and_commit,
    leave_aborted,
    close,
    end_session,
    leave,
]


@pytest.mark.parametrize("misdeed", MISDEEDS, ids=lambda misdeed: misdeed.__name__)
def test_a_handler_that_meddles_with_the_transaction(either: Harness, misdeed: Any) -> None:
    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)
        if event.message_id == "bad":
            misdeed(conn)

    either.accept(*messages(NEIGHBOURS), max_attempts=2)
    either.work_to_the_end()

    assert either.states() == {**dict.fromkeys("abcd", ("completed", 0)), "bad": ("failed", 2)}
    assert either.effects() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("misdeed", [commit_in_sql, roll_back_and_begin])
def test_the_error_says_what_not_to_do(harness: Harness, misdeed: Any) -> None:
    @harness.router.on("orders")
    def handle(conn: psycopg.Connection[Any]) -> None:
        misdeed(conn)

    harness.accept(message("bad"), max_attempts=1)
    harness.work_to_the_end()

    assert ENDED_BY_ITSELF in harness.row("bad")["last_error"]


def test_an_aborted_transaction_is_named(harness: Harness) -> None:
    @harness.router.on("orders")
    def handle(conn: psycopg.Connection[Any]) -> None:
        leave_aborted(conn)

    harness.accept(message("bad"), max_attempts=1)
    harness.work_to_the_end()

    assert LEFT_ABORTED in harness.row("bad")["last_error"]


async def async_commit(conn: psycopg.AsyncConnection[Any]) -> None:
    await conn.commit()


async def async_commit_in_sql(conn: psycopg.AsyncConnection[Any]) -> None:
    await conn.execute("COMMIT")


async def async_commit_and_swallow(conn: psycopg.AsyncConnection[Any]) -> None:
    with suppress(psycopg.Error):
        await conn.execute("COMMIT")


async def async_roll_back_and_begin(conn: psycopg.AsyncConnection[Any]) -> None:
    await conn.execute("ROLLBACK")
    await conn.execute("BEGIN")


async def async_leave_aborted(conn: psycopg.AsyncConnection[Any]) -> None:
    with suppress(psycopg.Error):
        await conn.execute("SELECT 1 / 0")


async def async_close(conn: psycopg.AsyncConnection[Any]) -> None:
    await conn.close()


async def async_end_session(conn: psycopg.AsyncConnection[Any]) -> None:
    await conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")


async def async_cancel(conn: psycopg.AsyncConnection[Any]) -> None:
    raise asyncio.CancelledError


ASYNC_MISDEEDS = [
    async_commit,
    async_commit_in_sql,
    async_commit_and_swallow,
    async_roll_back_and_begin,
    async_leave_aborted,
    async_close,
    async_end_session,
    async_cancel,
]


@pytest.mark.parametrize("misdeed", ASYNC_MISDEEDS, ids=lambda misdeed: misdeed.__name__)
def test_an_async_handler_that_meddles_with_the_transaction(harness: Harness, misdeed: Any) -> None:
    @harness.router.on("orders")
    async def handle(event: InboxEvent, conn: psycopg.AsyncConnection[Any]) -> None:
        await conn.execute("INSERT INTO effects (event) VALUES (%s)", [event.message_id])
        if event.message_id == "bad":
            await misdeed(conn)

    harness.accept(*messages(NEIGHBOURS), max_attempts=2)
    harness.work_to_the_end()

    assert harness.effects() == ["a", "b", "c", "d"]
    assert harness.states() == {**dict.fromkeys("abcd", ("completed", 0)), "bad": ("failed", 2)}


def test_a_deferred_constraint_fails_only_its_own_event(harness: Harness) -> None:
    harness.conn.execute("CREATE TABLE customers (name text PRIMARY KEY)")
    harness.conn.execute(
        "CREATE TABLE invoices (customer text REFERENCES customers DEFERRABLE INITIALLY DEFERRED)"
    )

    @harness.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        if event.message_id == "bad":
            conn.execute("INSERT INTO invoices VALUES ('nobody')")
        write(conn, event.message_id)

    harness.accept(*messages(NEIGHBOURS), max_attempts=1)
    harness.work_to_the_end()

    assert harness.effects() == ["a", "b", "c", "d"]
    assert "ForeignKeyViolation" in harness.row("bad")["last_error"]


def test_a_handler_that_hangs_in_python_is_left_behind(either: Harness) -> None:
    forever = threading.Event()

    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)
        if event.message_id == "bad":
            forever.wait()
            write(conn, "too late")

    either.accept(*messages(NEIGHBOURS), max_attempts=2)
    either.work_to_the_end(either.worker(timeout="300ms"))
    forever.set()

    assert either.effects() == ["a", "b", "c", "d"]
    assert either.states()["bad"] == ("failed", 2)
    assert "took longer than 300ms" in either.row("bad")["last_error"]
    assert either.tally.value(INBOX_HUNG_TOTAL) == 2


def test_a_handler_that_hangs_in_the_database_is_ended(harness: Harness) -> None:
    @harness.router.on("orders", timeout=timedelta(milliseconds=300))
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        conn.execute("SELECT pg_sleep(600)")

    harness.accept(message("bad"), max_attempts=1)
    harness.work_to_the_end()

    assert harness.states() == {"bad": ("failed", 1)}
    query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%pg_sleep(600)%%' AND pid <> pg_backend_pid()"
    wait_for(lambda: harness.ask(query) == [(0,)], what="the end of the session")


def test_an_async_handler_that_hangs_is_cancelled(harness: Harness) -> None:
    cancelled: list[str] = []

    @harness.router.on("orders")
    async def handle(event: InboxEvent, conn: psycopg.AsyncConnection[Any]) -> None:
        await conn.execute("INSERT INTO effects (event) VALUES (%s)", [event.message_id])
        if event.message_id == "bad":
            try:
                await asyncio.sleep(600)
            finally:
                cancelled.append(event.message_id)

    harness.accept(*messages(NEIGHBOURS), max_attempts=2)
    harness.work_to_the_end(harness.worker(timeout="200ms"))

    assert harness.effects() == ["a", "b", "c", "d"]
    assert cancelled == ["bad", "bad"]
    assert harness.tally.value(INBOX_HUNG_TOTAL) == 0


def test_a_worker_with_too_many_hung_handlers_gives_up(harness: Harness) -> None:
    forever = threading.Event()

    @harness.router.on("orders")
    def handle() -> None:
        forever.wait()

    harness.accept(*messages("abc"))
    worker = harness.worker(timeout="100ms", max_hung=2, transaction_size=1)

    with pytest.raises(HandlerHung, match="start its process again"):
        worker.run_once()
    forever.set()

    counted = [attempts for _, attempts in harness.states().values()]
    assert sorted(counted) == [0, 1, 1]


def test_a_lock_that_was_taken_away_undoes_the_effects(either: Harness) -> None:
    table = TableName.parse(either.table).within("public")

    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)
        if event.message_id == "b" and event.attempts == 0 and not taken:
            taken.extend(InboxMaintenance(table).unlock(either.conn, [event.id], "it seems to hang"))

    taken: list[str] = []
    either.accept(*messages(["a", "b", "c"]))
    worker = either.worker()
    worker.run_once()

    assert len(taken) == 1
    assert either.effects() == ["a", "c"]
    row = either.row("b")
    assert row["status"] == "pending"
    assert row["last_error"].startswith("unlocked by force: it seems to hang (was locked by outspark/inbox/")

    either.work_to_the_end(worker)
    assert either.effects() == ["a", "c", "b"]


def test_a_running_handlers_locks_are_refreshed(harness: Harness) -> None:
    go_on = threading.Event()

    @harness.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)
        go_on.wait(20)

    harness.accept(*messages(["a", "b"]))
    worker = harness.worker(lease="1s")
    thread = threading.Thread(target=worker.run_once)
    thread.start()
    try:
        wait_for(lambda: harness.row("b")["locked_at"] is not None)
        first = harness.row("b")["locked_at"]
        wait_for(lambda: (harness.row("b")["locked_at"] - first) > timedelta(seconds=1.5))
        # Another worker that looks for stale locks finds none.
        assert harness.worker(lease="1s").run_once() == 0
    finally:
        go_on.set()
        thread.join(20)

    assert harness.effects() == ["a", "b"]
    assert set(harness.states().values()) == {("completed", 0)}


def test_a_stale_lock_of_a_foreign_worker_is_given_back_and_counted(either: Harness) -> None:
    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    either.accept(*messages(["stale", "fresh"]))
    either.lock("stale", "omni-box-worker-1", timedelta(minutes=5))
    either.lock("fresh", "omni-box-worker-1")
    worker = either.worker()
    worker.run_once()

    assert either.effects() == ["stale"]
    assert either.states() == {"stale": ("completed", 1), "fresh": ("pending", 0)}


def test_a_stale_lock_at_the_last_attempt_is_the_end(harness: Harness) -> None:
    harness.accept(message("m1"), max_attempts=1)
    harness.lock("m1", "omni-box-worker-1", timedelta(minutes=5))
    harness.worker().run_once()

    assert harness.states() == {"m1": ("failed", 1)}
    assert harness.row("m1")["last_error"] == "lock of omni-box-worker-1 ran out"


def test_a_lost_database_connection_counts_no_attempt(harness: Harness) -> None:
    @harness.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)
        if not struck:
            struck.append(1)
            harness.conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name LIKE 'outspark inbox%%' AND datname = current_database()"
            )

    struck: list[int] = []
    harness.accept(*messages(["a", "b"]))
    worker = harness.worker()
    with pytest.raises(psycopg.OperationalError):
        worker.run_once()

    harness.work_to_the_end(worker)
    assert harness.effects() == ["a", "b"]
    assert set(harness.states().values()) == {("completed", 0)}


def test_a_session_that_ended_while_nobody_needed_it_counts_no_attempt(harness: Harness) -> None:
    @harness.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    worker = harness.worker()
    harness.accept(message("a"))
    worker.run_once()
    ended = harness.ask(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE application_name LIKE 'outspark inbox%% handlers' AND datname = current_database()"
    )
    harness.accept(message("b"))
    worker.run_once()

    assert ended == [(True,)]
    assert harness.effects() == ["a", "b"]
    assert set(harness.states().values()) == {("completed", 0)}


@pytest.fixture
def one_session(harness: Harness) -> Iterator[str]:
    """A role that may have a single session, which is the worker's own."""
    role = f"single_{os.getpid()}"
    harness.conn.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1".encode())
    harness.conn.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}".encode())
    yield role
    harness.close()
    harness.conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_a_handler_that_gets_no_session_counts_no_attempt(harness: Harness, one_session: str) -> None:
    @harness.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        raise AssertionError("never called")

    harness.accept(message("a"))
    url = harness.database.url.replace("postgres@", f"{one_session}@")
    with Worker(url, harness.table, harness.router, harness.worker().settings) as worker:
        with pytest.raises(psycopg.OperationalError, match="too many connections"):
            worker.run_once()

    assert harness.states() == {"a": ("pending", 0)}
    assert harness.row("a")["locked_by"] is None


KILLER = """
import os, signal, sys
import psycopg
from outspark.inbox import InboxEvent, Router, Worker, WorkSettings

router = Router()

@router.on("orders")
def handle(event: InboxEvent, conn: psycopg.Connection) -> None:
    conn.execute("INSERT INTO effects (event) VALUES (%s)", [event.message_id])
    if event.message_id == "bad":
        os.kill(os.getpid(), signal.SIGKILL)

settings = WorkSettings.model_validate({
    "group": "billing", "maintenance_interval": "20ms", "retry": {"base_delay": "20ms", "jitter": 0},
})
with Worker(sys.argv[1], sys.argv[2], router, settings) as worker:
    while worker.run_once():
        pass
"""


def test_an_event_that_kills_its_process_ends_as_dead_and_takes_nobody_along(
    either: Harness, tmp_path: Path
) -> None:
    script = tmp_path / "killer.py"
    script.write_text(KILLER)
    either.accept(*messages(NEIGHBOURS), max_attempts=3)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def died() -> bool:
        command = [sys.executable, str(script), either.database.url, either.table]
        return subprocess.run(command, env=environment, timeout=60, check=False).returncode == -signal.SIGKILL

    deaths = 0
    deadline = time.monotonic() + 100
    while either.waiting() and time.monotonic() < deadline:
        deaths += died()

    assert deaths == 3
    assert either.states()["bad"] == ("failed", 3)
    assert "vanished" in either.row("bad")["last_error"]
    assert sorted(either.effects()) == ["a", "b", "c", "d"]
    # Those who were in the same hands lost one attempt, and no more.
    assert {either.states()[name] for name in "abcd"} == {("completed", 1)}
