"""Stats, dead events, prune and reap on an omni-box outbox in every state, with and without partitions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from outspark.contracts.maintenance import DeadFilter
from outspark.contracts.omnibox import CONTRACT
from outspark.contracts.omnibox.table import kind, ready_index
from outspark.database.names import TableName
from outspark.errors import SettingsError
from outspark.maintenance.operations import Maintenance, Pruned, Retention
from tests.databases import Database

TABLE = TableName("orders_outbox", "public")
PARTITIONS = """
CREATE TABLE past PARTITION OF orders_outbox FOR VALUES FROM (MINVALUE) TO ('2020-01-01');
CREATE TABLE present PARTITION OF orders_outbox FOR VALUES FROM ('2020-01-01') TO (MAXVALUE)"""
HOUR, DAY = timedelta(hours=1), timedelta(days=1)

INSERT = """
INSERT INTO orders_outbox (id, event_type, aggregate_type, aggregate_id, topic, partition_key, payload, headers, status,
  attempts_made, max_attempts, scheduled_at, created_at, updated_at, completed_at, locked_by, locked_at, last_error)
SELECT gen_random_uuid(), %(type)s, 'order', gen_random_uuid(), 'orders', %(key)s, '{"n": 1}', '{"tenant": "a"}',
       %(status)s::text, %(attempts)s, %(max_attempts)s, now() + %(due)s, now() - %(age)s, now() - %(age)s,
       CASE WHEN %(status)s::text = 'completed' THEN now() - %(age)s END, %(relay)s::text,
       CASE WHEN %(relay)s::text IS NOT NULL THEN now() - %(age)s END, %(error)s
FROM generate_series(1, %(count)s) RETURNING id::text"""


class Outbox:
    """Puts events of any state into the table, through a connection of its own."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self.conn = conn

    def put(self, status: str, count: int = 1, **fields: Any) -> list[str]:
        defaults = {"type": "t", "attempts": 0, "max_attempts": 6, "due": timedelta(0), "age": timedelta(0)}
        nothing = {"relay": None, "error": None, "key": "k"}
        parameters = {**defaults, **nothing, **fields, "status": status, "count": count}
        return [id for (id,) in self.conn.execute(INSERT, parameters)]

    def rows(self, columns: str, where: str = "true") -> list[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM orders_outbox WHERE {where} ORDER BY created_at, id"
        return self.conn.execute(query.encode()).fetchall()


@pytest.fixture(params=[False, True], ids=["plain", "partitioned"])
def outbox(request: pytest.FixtureRequest, database: Database) -> Outbox:
    conn = database.connect()
    conn.execute(kind(partitioned=request.param).ddl(TABLE))
    if request.param:
        conn.execute(PARTITIONS)
    return Outbox(conn)


@pytest.fixture
def maintenance(database: Database, outbox: Outbox) -> Maintenance:
    return Maintenance(database.connect(), CONTRACT.maintenance(TABLE))


@pytest.mark.parametrize("indexed", [False, True])
def test_stats_of_every_state(outbox: Outbox, maintenance: Maintenance, indexed: bool) -> None:
    if indexed:
        outbox.conn.execute(ready_index(TABLE).encode())
    outbox.put("pending", 3, age=2 * HOUR)
    outbox.put("pending", 2, attempts=1, due=HOUR, error="no luck")
    outbox.put("pending", 1, due=HOUR, error="the broker was down")
    outbox.put("pending", 4, due=HOUR)
    outbox.put("pending", 5, relay="worker-7", age=3 * HOUR)
    outbox.put("completed", 6, age=DAY)
    outbox.put("failed", 7, attempts=6)

    stats = maintenance.stats(exact=True)

    assert (stats.pending, stats.backoff, stats.scheduled) == (10, 3, 4)
    assert (stats.delivering, stats.dead, stats.delivered) == (5, 7, 6)
    assert stats.oldest_age is not None
    assert 2 * HOUR <= stats.oldest_age < 3 * HOUR
    assert stats.due_age is not None
    assert stats.due_age < HOUR
    assert stats.oldest_lease is not None
    assert 3 * HOUR <= stats.oldest_lease < 4 * HOUR


def test_stats_of_nothing(maintenance: Maintenance) -> None:
    stats = maintenance.stats(exact=True)

    assert (stats.pending, stats.delivering, stats.dead, stats.delivered) == (0, 0, 0, 0)
    assert (stats.oldest_age, stats.due_age, stats.oldest_lease) == (None, None, None)


def test_an_estimate_of_the_completed(outbox: Outbox, maintenance: Maintenance) -> None:
    assert maintenance.stats().delivered is None

    outbox.put("completed", 50)
    outbox.put("failed", 5, attempts=6)
    outbox.conn.execute("ANALYZE orders_outbox")

    assert maintenance.stats().delivered == 50


def test_dead_events_are_found_shown_and_given_a_new_life(outbox: Outbox, maintenance: Maintenance) -> None:
    (one,) = outbox.put("failed", type="order.paid", key="a", attempts=6, error="Too Large")
    (two,) = outbox.put("failed", type="user.born", key="b", attempts=6, error="no topic", age=HOUR)
    outbox.put("pending", 2)

    def found(**which: Any) -> set[str]:
        return {event.id for event in maintenance.list_dead(DeadFilter(**which))}

    assert found() == {one, two}
    assert found(type="order.*") == found(key="a") == found(error="too large") == found(ids=(one,)) == {one}
    assert found(after=min(one, two)) == {max(one, two)}
    shown = maintenance.show_dead(one)
    assert shown is not None
    assert (shown.type, shown.key, shown.attempts, shown.payload) == ("order.paid", "a", 6, b'{"n": 1}')
    assert {"tenant": "a", "topic": "orders", "aggregate_type": "order"}.items() <= shown.headers.items()

    assert maintenance.requeue(DeadFilter(ids=(one,))) == [one]

    assert outbox.rows("status, attempts_made, scheduled_at <= now(), last_error", f"id = '{one}'") == [
        ("pending", 0, True, "Too Large")
    ]
    assert maintenance.discard(DeadFilter()) == [two]
    assert maintenance.count_dead(DeadFilter()) == 0


def test_an_id_that_is_none_is_refused(maintenance: Maintenance) -> None:
    with pytest.raises(SettingsError, match="allowed: a UUID"):
        maintenance.show_dead("17")


def test_prune_deletes_what_is_past_its_retention(outbox: Outbox, maintenance: Maintenance) -> None:
    outbox.put("completed", 25, age=8 * DAY)
    outbox.put("completed", 3, age=DAY)
    outbox.put("failed", 4, attempts=6, age=40 * DAY)
    outbox.put("failed", 2, attempts=6, age=8 * DAY)
    outbox.put("pending", 5, age=90 * DAY)
    retention = Retention(delivered=7 * DAY, dead=30 * DAY)

    assert maintenance.count_prunable(retention) == Pruned(25, 4)
    *_, done = maintenance.prune(retention, batch=10)

    assert done == Pruned(25, 4)
    left = dict(outbox.rows("status, count(*) OVER (PARTITION BY status)"))
    assert left == {"completed": 3, "failed": 2, "pending": 5}


def test_reap_gives_back_locks_that_ran_out(outbox: Outbox, maintenance: Maintenance) -> None:
    (old,) = outbox.put("pending", relay="worker-7", age=HOUR)
    (last,) = outbox.put("pending", relay="worker-7", age=HOUR, attempts=2, max_attempts=3)
    outbox.put("pending", relay="worker-7")

    reaped = maintenance.reap(timedelta(minutes=3), max_attempts=25)

    assert (reaped.returned, reaped.dead) == ((old,), (last,))
    columns = "status, attempts_made, locked_by, locked_at, last_error"
    assert outbox.rows(columns, f"id = '{old}'") == [("pending", 1, None, None, "lease of worker-7 ran out")]
    assert outbox.rows(columns, f"id = '{last}'") == [("failed", 3, None, None, "lease of worker-7 ran out")]
    assert maintenance.reap(timedelta(minutes=3), max_attempts=25).returned == ()
