"""Times without end in an inbox, and times that Python cannot hold, as somebody else may have written them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from outspark.contracts.maintenance import DeadFilter
from outspark.contracts.omnibox.inbox_maintenance import InboxMaintenance
from outspark.database.names import TableName
from outspark.inbox import InboxEvent
from outspark.maintenance.operations import Maintenance, Retention
from outspark.maintenance.partitions import Partitions
from tests.integration.inbox.harness import Harness, message, messages, write
from tests.waiting import wait_for

STRANGE = ["-infinity", "infinity", "0044-03-15 12:00+00 BC", "20000-01-01 00:00+00"]


@pytest.fixture
def strange(either: Harness) -> Harness:
    """A place that holds rows of any time."""
    if either.partitioned:
        either.conn.execute(f"CREATE TABLE elsewhere PARTITION OF {either.table} DEFAULT".encode())

    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    return either


def maintenance(harness: Harness) -> Maintenance:
    return Maintenance(harness.database.connect(), InboxMaintenance(TableName.parse(harness.table)))


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_what_is_never_due_holds_up_nobody_else(strange: Harness, ordering: str) -> None:
    strange.accept(*messages(["never", "beside"], key=b"k"), *messages(["failed", "behind"], key=b"r"))
    strange.set("never", scheduled_at="infinity")
    strange.set("failed", scheduled_at="infinity", attempts_made=1)
    strange.set("beside", scheduled_at="-infinity")
    worker = strange.worker(ordering=ordering)
    expected = ["beside"] if ordering == "key" else ["beside", "behind"]

    wait_for(lambda: worker.run_once() is None or strange.effects() == expected)

    assert 0 <= worker.idle_for() < 60
    stats = maintenance(strange).stats(exact=True)
    assert (stats.scheduled, stats.backoff) == (1, 1)


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_an_event_is_handled_whenever_it_was_made(strange: Harness, ordering: str) -> None:
    names = [str(number) for number in range(len(STRANGE))]
    strange.accept(*messages(names, key=b"k"))
    for name, made in zip(names, STRANGE, strict=True):
        strange.set(name, created_at=made)
    assert maintenance(strange).stats(exact=True).pending == len(STRANGE)

    strange.work_to_the_end(strange.worker(ordering=ordering))

    assert strange.effects() == names


def test_a_head_is_tried_again_and_dies_whenever_it_was_made(strange: Harness) -> None:
    @strange.router.on("failing")
    def fail(event: InboxEvent) -> None:
        raise ValueError("no")

    names = [str(number) for number in range(len(STRANGE))]
    each = [message(name, key=name.encode(), topic="failing") for name in names]
    strange.accept(*each, max_attempts=2)
    for name, made in zip(names, STRANGE, strict=True):
        strange.set(name, created_at=made)

    strange.work_to_the_end(strange.worker(ordering="key"))

    assert strange.states() == dict.fromkeys(names, ("failed", 2))
    keeper = maintenance(strange)
    shown = [keeper.show_dead(event.id) for event in keeper.list_dead(DeadFilter())]
    assert len(shown) == len(STRANGE)
    assert None not in shown
    strange.conn.execute(f"UPDATE {strange.table} SET updated_at = '-infinity'".encode())
    *_, pruned = keeper.prune(Retention(dead=timedelta(days=1)), batch=3)
    assert pruned.dead == len(STRANGE)


def test_partitions_without_end_are_kept_like_others(parted: Harness) -> None:
    for name, bounds in {
        "before": "('-infinity') TO ('1990-01-01')",
        "after": "('2990-01-01') TO ('infinity')",
    }.items():
        parted.conn.execute(
            f"CREATE TABLE {name} PARTITION OF {parted.table} FOR VALUES FROM {bounds}".encode()
        )

    Partitions(parted.conn, parted.table, ahead=2).create_ahead()
