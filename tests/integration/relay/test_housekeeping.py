"""Housekeeping of a jEAP outbox: what is old goes, page by page, under the lock that jEAP's own takes."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest

from outspark.config.settings import Settings
from outspark.contracts.jeap.maintenance import JeapMaintenance
from outspark.contracts.jeap.table import ddl
from outspark.contracts.maintenance import DeadFilter
from outspark.database import side_tables
from outspark.database.names import TableName
from outspark.database.shedlock import HOUSEKEEPING
from outspark.maintenance.housekeeping import Housekeeper
from outspark.maintenance.operations import Maintenance, Pruned
from tests.databases import Database
from tests.integration.relay.jeap_harness import header_ddl
from tests.waiting import wait_for

HOLDER = "outspark/test/1"
FILL = """
INSERT INTO deferred_message (id, message, topic, message_id, message_idempotence_id, message_type_name, created,
                              send_immediately, sent_immediately, sent_scheduled, failed, resend)
SELECT nextval('deferred_message_sequence'), '', %(kind)s, 'm', 'i', 't', now() - %(created)s::interval, false,
       now() - %(immediately)s::interval, now() - %(scheduled)s::interval, now() - %(failed)s::interval, %(resend)s
FROM generate_series(1, %(count)s)"""


TABLE = TableName("deferred_message", "public")
STORE = """
INSERT INTO deferred_message_header
SELECT id, n, 'a', NULL FROM deferred_message, generate_series(0, 2) AS n"""
STORED = """
SELECT m.topic, count(*) FROM deferred_message_header h LEFT JOIN deferred_message m ON m.id = h.deferred_message_id
GROUP BY m.topic"""


def stored(conn: psycopg.Connection[Any]) -> dict[str | None, int]:
    """How many headers there are of each kind of message; those of None have lost theirs."""
    return dict(conn.execute(STORED).fetchall())


def fill(conn: psycopg.Connection[Any], kind: str, count: int = 1, **ages: Any) -> None:
    none = dict.fromkeys(("immediately", "scheduled", "failed"), None)
    conn.execute(FILL, {"kind": kind, "count": count, "created": "1 day", "resend": False, **none, **ages})


def left(conn: psycopg.Connection[Any]) -> dict[str, int]:
    rows = conn.execute("SELECT topic, count(*) FROM deferred_message GROUP BY topic").fetchall()
    return dict(rows)


def housekeeper(database: Database, **jeap: Any) -> Housekeeper:
    source = {"url": database.url, "contract": "jeap", "jeap": jeap}
    made = Housekeeper.of(Settings.model_validate({"sources": {"shop": source}}).sources, HOLDER)
    assert made is not None
    return made


@pytest.fixture
def conn(database: Database) -> psycopg.Connection[Any]:
    conn = database.connect()
    conn.execute(ddl().encode())
    return conn


def test_it_deletes_what_is_past_its_retention(database: Database, conn: psycopg.Connection[Any]) -> None:
    fill(conn, "sent at once, long ago", 7, immediately="3 days")
    fill(conn, "sent by the relay, long ago", 5, scheduled="3 days")
    fill(conn, "sent lately", scheduled="1 day")
    fill(conn, "sent twice, at last lately", immediately="3 days", scheduled="1 day")
    fill(conn, "sent, to be sent again", scheduled="3 days", resend=True)
    fill(conn, "never sent", 3, created="31 days")
    fill(conn, "failed", 2, created="31 days", failed="30 days")
    fill(conn, "failed lately", failed="1 hour")
    fill(conn, "waiting", created="29 days")

    assert housekeeper(database, page_size=2).clean("shop") == Pruned(delivered=12, dead=5)

    kept = ("sent lately", "sent twice, at last lately", "sent, to be sent again", "failed lately", "waiting")
    assert left(conn) == dict.fromkeys(kept, 1)


def test_attempts_of_messages_that_are_through_are_forgotten(
    database: Database, conn: psycopg.Connection[Any]
) -> None:
    fill(conn, "sent", scheduled="1 day")
    fill(conn, "waiting")
    conn.execute(side_tables.compose(side_tables.CREATE_ATTEMPTS, TableName("deferred_message")).encode())
    conn.execute(
        "INSERT INTO outspark_attempts SELECT 'public.deferred_message', id, 3, 'x' FROM deferred_message"
    )

    housekeeper(database).clean("shop")

    assert conn.execute("SELECT event_id FROM outspark_attempts").fetchall() == [("2",)]


@pytest.mark.parametrize("on_delete", ["ON DELETE CASCADE", "ON DELETE NO ACTION", "ON DELETE RESTRICT"])
def test_headers_go_with_their_messages(
    database: Database, conn: psycopg.Connection[Any], on_delete: str
) -> None:
    conn.execute(header_ddl(on_delete=on_delete))
    fill(conn, "sent", 5, scheduled="3 days")
    fill(conn, "never sent", 5, created="31 days")
    fill(conn, "kept", 2)
    fill(conn, "failed", failed="1 hour")
    conn.execute(STORE)

    assert housekeeper(database, page_size=2).clean("shop") == Pruned(delivered=5, dead=5)
    assert stored(conn) == {"kept": 6, "failed": 3}

    assert len(Maintenance(conn, JeapMaintenance(TABLE)).discard(DeadFilter())) == 1
    assert stored(conn) == {"kept": 6}


def test_headers_without_a_foreign_key_go_too(database: Database, conn: psycopg.Connection[Any]) -> None:
    conn.execute(header_ddl())
    conn.execute(
        "ALTER TABLE deferred_message_header DROP CONSTRAINT deferred_message_header_deferred_message_id_fkey"
    )
    fill(conn, "sent", 5, scheduled="3 days")
    fill(conn, "kept")
    conn.execute(STORE)

    assert housekeeper(database, page_size=2).clean("shop") == Pruned(delivered=5)
    assert stored(conn) == {"kept": 3}


def test_a_run_is_bounded(database: Database, conn: psycopg.Connection[Any]) -> None:
    fill(conn, "sent", 10, scheduled="3 days")
    fill(conn, "never sent", 10, created="31 days")

    assert housekeeper(database, page_size=2, max_pages=3).clean("shop") == Pruned(delivered=6, dead=6)
    assert left(conn) == {"sent": 4, "never sent": 4}


def test_it_leaves_the_work_to_whoever_holds_the_lock(
    database: Database, conn: psycopg.Connection[Any]
) -> None:
    fill(conn, "sent", scheduled="3 days")
    take = "INSERT INTO shedlock SELECT %s, utc + interval '1 hour', utc, 'java' FROM timezone('utc', now()) AS utc"
    conn.execute(take, [HOUSEKEEPING])

    assert housekeeper(database).clean("shop") is None
    assert left(conn) == {"sent": 1}

    conn.execute("UPDATE shedlock SET lock_until = timezone('utc', now())")
    assert housekeeper(database).clean("shop") == Pruned(delivered=1)
    [(holder, over)] = conn.execute(
        "SELECT locked_by, lock_until <= timezone('utc', now()) FROM shedlock"
    ).fetchall()
    assert (holder, over) == (HOLDER, True)


@pytest.mark.parametrize(("ahead", "seconds"), [("2 hours", 7200), ("-2 hours", 79_200)])
def test_it_waits_for_its_time_of_day(
    database: Database, conn: psycopg.Connection[Any], ahead: str, seconds: int
) -> None:
    [(at,)] = conn.execute(
        "SELECT to_char(timezone('utc', now() + %s::interval), 'HH24:MI')", [ahead]
    ).fetchall()
    keeper, stopping = housekeeper(database, housekeeping=at), threading.Event()
    thread = threading.Thread(target=keeper.run, args=(stopping,), daemon=True)
    thread.start()
    try:
        due = wait_for(lambda: keeper._due.get("shop", 0.0), what="a plan")
    finally:
        stopping.set()
        thread.join(10)
    assert not thread.is_alive()
    assert due - time.monotonic() == pytest.approx(seconds, abs=90)


def test_it_can_be_switched_off() -> None:
    def of(**source: Any) -> Housekeeper | None:
        settings = Settings.model_validate({"sources": {"shop": {"url": "postgresql://x", **source}}})
        return Housekeeper.of(settings.sources, HOLDER)

    assert of(contract="jeap") is not None
    assert of(contract="jeap", jeap={"housekeeping": "off"}) is None
    assert of() is None
