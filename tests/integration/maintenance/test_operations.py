"""Stats, dead events, prune and reap, on a table in every state."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from outspark.contracts.maintenance import DeadFilter
from outspark.contracts.openoutbox import CONTRACT
from outspark.contracts.openoutbox.table import ddl
from outspark.database.names import TableName
from outspark.errors import SettingsError
from outspark.maintenance.operations import BATCH, Maintenance, Pruned, Retention
from tests.databases import Database

TABLE = TableName("orders_outbox", "public")

INSERT = """
INSERT INTO orders_outbox (event_id, event_type, payload, status, attempts, available_at, created_at,
                           updated_at, delivered_at, locked_by, locked_at, last_error, partition_key)
SELECT gen_random_uuid(), %(type)s, 'payload', %(status)s, %(attempts)s, now() + %(due)s, now() - %(age)s,
       now() - %(age)s, CASE WHEN %(status)s = 'DELIVERED' THEN now() - %(age)s END, %(relay)s::text,
       CASE WHEN %(relay)s::text IS NOT NULL THEN now() - %(age)s END, %(error)s, %(key)s
FROM generate_series(1, %(count)s) RETURNING event_id::text"""


class Outboxes:
    """Puts events of any state into the table, through a connection of its own."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self.conn = conn

    def put(self, status: str, count: int = 1, **fields: Any) -> list[str]:
        defaults = {"type": "t", "attempts": 0, "due": timedelta(0), "age": timedelta(0)}
        nothing = {"relay": None, "error": None, "key": None}
        parameters = {**defaults, **nothing, **fields, "status": status, "count": count}
        return [id for (id,) in self.conn.execute(INSERT, parameters)]

    def rows(self, columns: str, where: str = "true") -> list[tuple[Any, ...]]:
        return self.conn.execute(f"SELECT {columns} FROM orders_outbox WHERE {where}").fetchall()


@pytest.fixture
def table(database: Database) -> Outboxes:
    conn = database.connect()
    conn.execute(ddl(TABLE))
    return Outboxes(conn)


@pytest.fixture
def maintenance(database: Database, table: Outboxes) -> Maintenance:
    return Maintenance(database.connect(), CONTRACT.maintenance(TABLE))


HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def test_stats_of_an_empty_table(maintenance: Maintenance) -> None:
    stats = maintenance.stats(exact=True)

    assert (stats.pending, stats.delivering, stats.dead, stats.delivered) == (0, 0, 0, 0)
    assert (stats.oldest_age, stats.due_age, stats.oldest_lease) == (None, None, None)


def test_stats_tell_the_states_apart(table: Outboxes, maintenance: Maintenance) -> None:
    table.put("PENDING", 3, age=HOUR, due=-timedelta(minutes=5))
    table.put("PENDING", 2, due=HOUR)
    table.put("PENDING", 4, due=HOUR, attempts=1)
    table.put("DELIVERING", 2, relay="a", age=timedelta(minutes=2))
    table.put("DEAD", 5)
    table.put("DELIVERED", 6)

    stats = maintenance.stats(exact=True)

    assert (stats.pending, stats.backoff, stats.scheduled) == (9, 4, 2)
    assert (stats.delivering, stats.dead, stats.delivered) == (2, 5, 6)
    assert stats.delivered_exact
    assert stats.oldest_age is not None
    assert HOUR <= stats.oldest_age < HOUR + timedelta(minutes=1)
    assert stats.due_age is not None
    assert timedelta(minutes=5) <= stats.due_age < timedelta(minutes=6)
    assert stats.oldest_lease is not None
    assert timedelta(minutes=2) <= stats.oldest_lease < timedelta(minutes=3)


def test_delivered_events_are_estimated_without_reading_them(
    table: Outboxes, maintenance: Maintenance
) -> None:
    assert maintenance.stats().delivered is None
    table.put("DELIVERED", 20_000)
    table.put("DEAD", 10)
    table.conn.execute("VACUUM ANALYZE orders_outbox")
    before = sequential_scans(table.conn)

    stats = maintenance.stats()

    assert stats.delivered == 20_000
    assert not stats.delivered_exact
    maintenance._conn.execute("SELECT pg_stat_force_next_flush()")
    assert sequential_scans(table.conn) == before


def sequential_scans(conn: psycopg.Connection) -> int:
    row = conn.execute("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'orders_outbox'").fetchone()
    assert row is not None
    return int(row[0])


def test_dead_events_are_listed_latest_first_and_shown_with_payload(
    table: Outboxes, maintenance: Maintenance
) -> None:
    [old] = table.put("DEAD", age=HOUR, type="order.created", error="too large", attempts=25, key="k")
    [new] = table.put("DEAD")
    [alive] = table.put("PENDING")

    assert [event.id for event in maintenance.list_dead(DeadFilter())] == [new, old]
    assert [event.id for event in maintenance.list_dead(DeadFilter(), limit=1)] == [new]
    shown = maintenance.show_dead(old)
    assert shown is not None
    assert (shown.type, shown.key, shown.attempts, shown.error) == ("order.created", "k", 25, "too large")
    assert (shown.payload, shown.payload_size) == (b"payload", 7)
    assert maintenance.list_dead(DeadFilter())[1].payload == b""
    assert maintenance.show_dead(alive) is None


@pytest.mark.parametrize(
    ("which", "fits"),
    [
        (DeadFilter(), {"a", "b", "c"}),
        (DeadFilter(type="order.*"), {"a", "b"}),
        (DeadFilter(type="*.paid"), {"b", "c"}),
        (DeadFilter(type="order_paid"), set()),
        (DeadFilter(type="order%"), set()),
        (DeadFilter(error="TOO LARGE"), {"a"}),
        (DeadFilter(error="100%"), {"b"}),
        (DeadFilter(key="k"), {"c"}),
        (DeadFilter(ids=()), set()),
        (DeadFilter(type="order.*", error="large"), {"a"}),
    ],
)
@pytest.mark.parametrize("verb", ["list", "requeue", "discard"])
def test_filters_fit_the_same_events_in_every_verb(
    table: Outboxes, maintenance: Maintenance, which: DeadFilter, fits: set[str], verb: str
) -> None:
    ids = {
        "a": table.put("DEAD", type="order.created", error="Message too large"),
        "b": table.put("DEAD", type="order.paid", error="disk at 100%"),
        "c": table.put("DEAD", type="bill.paid", key="k"),
    }
    wanted = {id for name in fits for id in ids[name]}

    assert maintenance.count_dead(which) == len(wanted)
    assert set(run(maintenance, verb, which)) == wanted


def run(maintenance: Maintenance, verb: str, which: DeadFilter) -> list[str]:
    verbs: dict[str, Callable[[], list[str]]] = {
        "list": lambda: [event.id for event in maintenance.list_dead(which)],
        "requeue": lambda: maintenance.requeue(which),
        "discard": lambda: maintenance.discard(which),
    }
    return verbs[verb]()


def test_dead_events_are_found_by_time(table: Outboxes, maintenance: Maintenance) -> None:
    table.put("DEAD", age=2 * DAY)
    [yesterday] = table.put("DEAD", age=DAY)
    table.put("DEAD")
    [(now,)] = table.conn.execute("SELECT now()").fetchall()

    which = DeadFilter(since=now - 1.5 * DAY, before=now - 0.5 * DAY)

    assert maintenance.requeue(which) == [yesterday]


def test_requeue_gives_a_new_life_at_the_old_place(table: Outboxes, maintenance: Maintenance) -> None:
    [id] = table.put("DEAD", attempts=25, age=HOUR, due=HOUR, error="boom", relay="r")
    [alive] = table.put("PENDING", attempts=3, age=HOUR)
    created = table.rows("created_at", "attempts = 25")

    assert maintenance.requeue(DeadFilter(ids=(id, alive))) == [id]
    assert maintenance.requeue(DeadFilter(ids=(id, alive))) == []

    columns = "status, attempts, last_error, locked_by, locked_at, available_at <= clock_timestamp()"
    assert table.rows(columns, f"event_id = '{id}'") == [("PENDING", 0, "boom", None, None, True)]
    assert table.rows("created_at", "attempts = 0") == created
    assert table.rows("attempts", f"event_id = '{alive}'") == [(3,)]


def test_requeue_goes_in_batches_and_keeps_to_its_limit(table: Outboxes, maintenance: Maintenance) -> None:
    table.put("DEAD", 2 * BATCH + 10)

    assert len(maintenance.requeue(DeadFilter(), limit=BATCH + 5)) == BATCH + 5
    assert len(maintenance.requeue(DeadFilter())) == BATCH + 5
    assert maintenance.count_dead(DeadFilter()) == 0


def test_discard_deletes_dead_events_only(table: Outboxes, maintenance: Maintenance) -> None:
    [dead] = table.put("DEAD")
    [alive] = table.put("PENDING")

    assert maintenance.discard(DeadFilter(ids=(dead, alive))) == [dead]

    assert table.rows("event_id::text") == [(alive,)]


def test_an_id_that_is_none_is_refused(maintenance: Maintenance) -> None:
    with pytest.raises(SettingsError, match="id = '7' is not an event id"):
        maintenance.requeue(DeadFilter(ids=("7",)))


def test_prune_deletes_what_is_past_its_retention(table: Outboxes, maintenance: Maintenance) -> None:
    table.put("DELIVERED", 25, age=8 * DAY)
    table.put("DELIVERED", 3, age=6 * DAY)
    table.put("DEAD", 4, age=31 * DAY)
    table.put("DEAD", 2, age=29 * DAY)
    table.put("PENDING", 5, age=99 * DAY)
    table.put("DELIVERING", 1, age=99 * DAY, relay="r")
    retention = Retention(delivered=7 * DAY, dead=30 * DAY)

    assert maintenance.count_prunable(retention) == Pruned(delivered=25, dead=4)
    progress = list(maintenance.prune(retention, batch=10))

    assert [step.total for step in progress] == [10, 20, 25, 29]
    assert progress[-1] == Pruned(delivered=25, dead=4)
    assert maintenance.count_prunable(retention) == Pruned()
    [counts] = table.rows(
        "count(*) FILTER (WHERE status = 'DELIVERED'), count(*) FILTER (WHERE status = 'DEAD'), count(*)"
    )
    assert counts == (3, 2, 11)


def test_prune_of_one_kind_leaves_the_other(table: Outboxes, maintenance: Maintenance) -> None:
    table.put("DELIVERED", age=9 * DAY)
    table.put("DEAD", age=9 * DAY)

    assert list(maintenance.prune(Retention(dead=DAY)))[-1] == Pruned(dead=1)
    assert list(maintenance.prune(Retention())) == []

    assert table.rows("status") == [("DELIVERED",)]


def test_prune_passes_over_rows_that_somebody_holds(
    database: Database, table: Outboxes, maintenance: Maintenance
) -> None:
    [held] = table.put("DELIVERED", age=9 * DAY)
    table.put("DELIVERED", 24, age=8 * DAY)
    holder = database.connect()
    with holder.transaction():
        holder.execute("SELECT 1 FROM orders_outbox WHERE event_id = %s FOR UPDATE", [held])
        done = list(maintenance.prune(Retention(delivered=DAY), batch=10))[-1]

    assert done == Pruned(delivered=24)
    assert list(maintenance.prune(Retention(delivered=DAY)))[-1] == Pruned(delivered=1)


def test_each_batch_of_prune_is_committed(table: Outboxes, maintenance: Maintenance) -> None:
    table.put("DELIVERED", 25, age=8 * DAY)

    next(maintenance.prune(Retention(delivered=DAY), batch=10))

    assert table.rows("count(*)") == [(15,)]


def test_reap_gives_back_leases_that_ran_out(table: Outboxes, maintenance: Maintenance) -> None:
    [lost] = table.put("DELIVERING", relay="relay-a", age=HOUR, attempts=3)
    [last] = table.put("DELIVERING", relay="relay-a", age=HOUR, attempts=24)
    [held] = table.put("DELIVERING", relay="relay-b", age=timedelta(minutes=1))
    [unmarked] = table.put("DELIVERING", age=HOUR)

    reaped = maintenance.reap(timedelta(minutes=3), max_attempts=25)

    assert set(reaped.returned) == {lost, unmarked}
    assert reaped.dead == (last,)
    columns = "event_id::text, status, attempts, locked_by, last_error"
    rows = {row[0]: row[1:] for row in table.rows(columns)}
    assert rows == {
        lost: ("PENDING", 4, None, "lease of relay-a ran out"),
        last: ("DEAD", 25, None, "lease of relay-a ran out"),
        held: ("DELIVERING", 0, "relay-b", None),
        unmarked: ("PENDING", 1, None, "lease of an unknown relay ran out"),
    }


def test_reap_takes_the_oldest_first_and_keeps_to_its_batch(
    table: Outboxes, maintenance: Maintenance
) -> None:
    table.put("DELIVERING", 3, relay="r", age=HOUR)
    [oldest] = table.put("DELIVERING", relay="r", age=2 * HOUR)

    assert maintenance.reap(timedelta(minutes=3), 25, batch=1).returned == (oldest,)
    assert len(maintenance.reap(timedelta(minutes=3), 25, batch=10).returned) == 3


def test_reap_leaves_alone_what_is_being_settled(
    database: Database, table: Outboxes, maintenance: Maintenance
) -> None:
    table.put("DELIVERING", relay="r", age=HOUR)
    relay = database.connect()
    with relay.transaction():
        relay.execute("UPDATE orders_outbox SET status = 'DELIVERED'")
        assert maintenance.reap(timedelta(minutes=3), 25).returned == ()

    assert table.rows("status") == [("DELIVERED",)]


def test_maintenance_refuses_a_connection_in_a_transaction(database: Database) -> None:
    with psycopg.connect(database.url) as conn:
        conn.execute("SELECT 1")
        with pytest.raises(RuntimeError, match="a connection without an open transaction"):
            Maintenance(conn, CONTRACT.maintenance(TABLE)).stats()
