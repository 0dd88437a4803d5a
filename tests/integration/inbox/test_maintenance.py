"""Stats, dead events, retention and stale locks of an inbox, with the verbs that outboxes have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from outspark.contracts.maintenance import DeadFilter
from outspark.contracts.omnibox.inbox_maintenance import InboxMaintenance
from outspark.database.names import TableName, resolve
from outspark.errors import SettingsError
from outspark.inbox import InboxEvent, Reject
from outspark.maintenance.operations import Maintenance, Retention
from tests.integration.inbox.harness import Harness, message, messages, write


def table_maintenance(harness: Harness, group: str | None = None) -> InboxMaintenance:
    return InboxMaintenance(resolve(harness.conn, TableName.parse(harness.table)), group)


def maintenance(harness: Harness, group: str | None = None) -> Maintenance:
    return Maintenance(harness.conn, table_maintenance(harness, group))


def bring_about(harness: Harness) -> None:
    """A completed, a dead, a locked, a waiting, a failed and a scheduled event."""

    @harness.router.on("orders")
    def handle(event: InboxEvent) -> None:
        if event.message_id == "dead":
            raise Reject("no such customer")
        if event.message_id == "backoff":
            raise ValueError("later")

    harness.accept(*messages(["done", "dead", "backoff"]))
    harness.worker(retry={"base_delay": "1h"}).run_once()
    harness.accept(*messages(["locked", "ready", "scheduled"]))
    harness.lock("locked", "somebody")
    harness.set("scheduled", scheduled_at=datetime.now(UTC) + timedelta(hours=1))


def test_stats(either: Harness) -> None:
    bring_about(either)
    either.accept(message("theirs"), group="shipping")

    stats = maintenance(either, "billing").stats(exact=True)

    assert (stats.pending, stats.backoff, stats.scheduled) == (3, 1, 1)
    assert (stats.delivering, stats.dead, stats.delivered) == (1, 1, 1)
    assert stats.oldest_lease is not None
    assert maintenance(either).stats(exact=True).pending == 4


def test_an_estimate_of_what_is_completed(either: Harness) -> None:
    bring_about(either)
    either.conn.execute("ANALYZE")

    assert maintenance(either).stats().delivered == 1
    assert maintenance(either, "billing").stats().delivered is None


def test_dead_events_are_listed_shown_and_requeued(either: Harness) -> None:
    bring_about(either)
    keep = maintenance(either)

    [dead] = keep.list_dead(DeadFilter(error="CUSTOMER"))
    shown = keep.show_dead(dead.id)

    assert (dead.type, dead.attempts, dead.error) == ("orders", 6, "no such customer")
    assert shown is not None
    assert shown.payload == b"{}"
    assert keep.requeue(DeadFilter()) == [dead.id]
    assert either.states()["dead"] == ("pending", 0)


def test_a_requeued_event_is_handled_once(either: Harness) -> None:
    sound: list[bool] = []

    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)
        if not sound and event.message_id == "m1":
            raise ValueError("not yet")

    either.accept(*messages(["m1", "m2"]), max_attempts=2)
    worker = either.worker()
    either.work_to_the_end(worker)
    assert either.states() == {"m1": ("failed", 2), "m2": ("completed", 0)}

    sound.append(True)
    assert len(maintenance(either).requeue(DeadFilter())) == 1
    assert maintenance(either).requeue(DeadFilter()) == []
    either.work_to_the_end(worker)

    assert either.effects() == ["m2", "m1"]
    assert either.states()["m1"] == ("completed", 0)


def test_dead_events_are_discarded(either: Harness) -> None:
    bring_about(either)

    assert len(maintenance(either).discard(DeadFilter(type="ord*"))) == 1
    assert "dead" not in either.states()


def test_retention_in_batches(either: Harness) -> None:
    @either.router.on("orders")
    def handle(event: InboxEvent) -> None:
        if event.message_id.startswith("dead"):
            raise Reject("dead")

    either.accept(*messages([*(f"m{n}" for n in range(25)), "dead1", "dead2"]))
    either.work_to_the_end()
    ago = datetime.now(UTC) - timedelta(days=8)
    either.conn.execute(
        f"UPDATE {either.table} SET completed_at = %s WHERE completed_at IS NOT NULL".encode(), [ago]
    )
    either.conn.execute(f"UPDATE {either.table} SET updated_at = %s".encode(), [ago])
    either.accept(message("new"))

    retention = Retention(delivered=timedelta(days=7), dead=timedelta(days=30))
    assert maintenance(either).count_prunable(retention).total == 25
    steps = [done.delivered for done in maintenance(either).prune(retention, batch=10)]

    assert steps == [10, 20, 25, 25][: len(steps)]
    assert steps[-1] == 25
    assert sorted(either.states()) == ["dead1", "dead2", "new"]


def test_a_forced_unlock_keeps_its_reason(either: Harness) -> None:
    either.accept(*messages(["locked", "free"]))
    either.lock("locked", "worker-7", timedelta(minutes=1))
    ids = [str(either.row(name)["id"]) for name in ("locked", "free")]

    unlocked = table_maintenance(either).unlock(either.conn, ids, "host is gone")

    assert unlocked == ids[:1]
    row = either.row("locked")
    assert row["locked_at"] is None
    assert row["last_error"].startswith("unlocked by force: host is gone (was locked by worker-7 since 20")
    with pytest.raises(SettingsError, match="reason"):
        table_maintenance(either).unlock(either.conn, ids, " ")


def test_reap_gives_back_what_ran_out(either: Harness) -> None:
    either.accept(*messages(["stale", "fresh", "last"]))
    either.set("last", max_attempts=1)
    for name, ago in (("stale", 5), ("fresh", 0), ("last", 5)):
        either.lock(name, "somebody", timedelta(minutes=ago))

    reaped = maintenance(either).reap(timedelta(minutes=1), max_attempts=99)

    assert (len(reaped.returned), len(reaped.dead)) == (1, 1)
    assert either.states() == {"stale": ("pending", 1), "fresh": ("pending", 0), "last": ("failed", 1)}


def test_reap_passes_over_what_is_being_written(harness: Harness) -> None:
    harness.accept(message("m1"))
    harness.lock("m1", "somebody", timedelta(minutes=5))
    with psycopg.connect(harness.database.url) as other:
        other.execute("SELECT 1 FROM inbox_events FOR UPDATE")

        assert maintenance(harness).reap(timedelta(minutes=1), max_attempts=99).returned == ()
