"""Times without end, and times that Python cannot hold: nobody waits for such a row but those who must.

PostgreSQL before 17 cannot subtract infinite times, so these say most on the oldest server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from psycopg import sql

from outspark import contracts
from outspark.contracts.maintenance import DeadFilter, Stats
from outspark.contracts.omnibox.table import ready_index
from outspark.database.names import TableName
from outspark.maintenance.operations import Maintenance, Retention
from outspark.outcome import Dead
from tests.databases import Database
from tests.integration.relay.harness import Harness, close_harness
from tests.integration.relay.jeap_harness import JeapHarness
from tests.integration.relay.omnibox_harness import TABLE, OmniboxHarness, open_omnibox_harness

STRANGE = ["-infinity", "infinity", "0044-03-15 12:00+00 BC", "20000-01-01 00:00+00"]


@pytest.fixture(params=["plain", "with our index", "partitioned"])
def omnibox(request: pytest.FixtureRequest, database: Database) -> Iterator[OmniboxHarness]:
    harness = open_omnibox_harness(database, partitioned=request.param == "partitioned")
    if request.param == "with our index":
        harness.conn.execute(ready_index(TABLE).encode())
    yield harness
    close_harness(harness)


def maintenance(harness: Harness) -> Maintenance:
    settings = harness.settings().sources["outbox"]
    table = TableName.parse(settings.table)
    return Maintenance(harness.database.connect(), contracts.get(settings.contract).maintenance(table))


def stats(harness: Harness) -> Stats:
    return maintenance(harness).stats(exact=True)


def has_delivered(harness: Harness, *names: str) -> Callable[[], bool]:
    return lambda: set(names) <= set(harness.broker.delivered())


@pytest.mark.parametrize("ordering", ["key", "none"])
def test_openoutbox_what_is_never_due_holds_up_nobody_else(leased: Harness, ordering: str) -> None:
    leased.source["ordering"] = ordering
    if ordering == "none":
        leased.source["lease"] = "row"
    leased.enqueue("never", "beside", key="k")
    leased.enqueue("failed", "behind", key="r")
    leased.enqueue("other", key="o")
    leased.set("never", available_at="infinity")
    leased.set("failed", available_at="infinity", attempts=1)
    leased.set("other", available_at="-infinity")

    leased.work(has_delivered(leased, "beside", "other"))

    held = {"never", "failed"} | ({"behind"} if ordering == "key" else set())
    assert not held & set(leased.broker.published())
    assert (stats(leased).scheduled, stats(leased).backoff) == (1, 1)


def test_omnibox_what_is_never_due_holds_up_nobody_else(omnibox: OmniboxHarness) -> None:
    omnibox.write("1", "2", key="k")
    omnibox.write("3", "4", key="r")
    omnibox.write("5", key="o")
    omnibox.change("1", scheduled_at="infinity")
    omnibox.change("3", scheduled_at="infinity", attempts_made=1)
    omnibox.change("5", scheduled_at="-infinity")

    omnibox.work(has_delivered(omnibox, "2", "5"))

    assert not {"1", "3", "4"} & set(omnibox.broker.published())
    assert (stats(omnibox).scheduled, stats(omnibox).backoff) == (1, 1)


def test_jeap_what_is_never_due_holds_up_nobody_else(jeap: JeapHarness) -> None:
    jeap.send("never", key=b"k", send_immediately=True, schedule_after="infinity")
    jeap.send("beside", key=b"k")
    jeap.send("other", key=b"o", send_immediately=True, schedule_after="-infinity")

    jeap.work(has_delivered(jeap, "beside", "other"))

    assert "never" not in jeap.broker.published()
    assert stats(jeap).scheduled == 1


def test_openoutbox_delivers_whatever_it_was_made(leased: Harness) -> None:
    for number, made in enumerate(STRANGE):
        leased.enqueue(str(number), key=f"k{number}")
        leased.set(str(number), created_at=made)
    assert stats(leased).pending == len(STRANGE)

    leased.work_to_the_end()

    assert sorted(leased.broker.delivered()) == ["0", "1", "2", "3"]


def test_omnibox_delivers_whatever_it_was_made(omnibox: OmniboxHarness) -> None:
    for number, made in enumerate(STRANGE):
        omnibox.write(str(number), key=f"k{number}")
        omnibox.change(str(number), created_at=made)
    assert stats(omnibox).pending == len(STRANGE)

    omnibox.work_to_the_end()

    assert sorted(omnibox.broker.delivered()) == ["0", "1", "2", "3"]


def test_jeap_delivers_whatever_it_was_made(jeap: JeapHarness) -> None:
    for number, made in enumerate(STRANGE):
        jeap.send(str(number), key=b"k%d" % number, created=made)
    assert stats(jeap).pending == len(STRANGE)

    jeap.work_to_the_end()

    assert sorted(jeap.broker.delivered()) == ["0", "1", "2", "3"]


def test_a_drain_of_many_batches_from_before_all_time(leased: Harness) -> None:
    """The mark from which later looks begin must not pass over the rest of them."""
    leased.source["batch_size"] = 10
    names = [str(number) for number in range(200)]
    leased.enqueue(*names, key="k")
    leased.conn.execute("UPDATE openoutbox_events SET created_at = '-infinity'")

    leased.work_to_the_end()

    assert sorted(leased.broker.delivered()) == sorted(names)


def test_ages_count_from_times_that_have_an_end(harness: Harness) -> None:
    harness.enqueue("a", "b", key="k")
    harness.set("a", created_at="-infinity", available_at="-infinity")
    harness.conn.execute(
        "UPDATE openoutbox_events SET created_at = now() - interval '1 hour' WHERE payload = 'b'"
    )

    seen = stats(harness)

    assert seen.oldest_age is not None
    assert 3600 <= seen.oldest_age.total_seconds() < 3700
    assert seen.due_age is not None
    assert 0 <= seen.due_age.total_seconds() < 100


@pytest.mark.parametrize("made", STRANGE)
def test_dead_events_of_such_times_are_shown_requeued_and_pruned(harness: Harness, made: str) -> None:
    harness.enqueue("a", "b", key="k")
    harness.broker.answers = {"a": [Dead("no")], "b": [Dead("no")]}
    harness.work_to_the_end()
    harness.conn.execute(
        sql.SQL(
            "UPDATE openoutbox_events SET created_at = {0}, updated_at = least({0}::timestamptz, now())"
        ).format(made)
    )
    table_maintenance = maintenance(harness)

    shown = table_maintenance.list_dead(DeadFilter())
    assert len(shown) == 2
    assert table_maintenance.show_dead(shown[0].id) is not None
    assert len(table_maintenance.requeue(DeadFilter(ids=(shown[0].id,)))) == 1
    harness.work_to_the_end()
    harness.conn.execute("UPDATE openoutbox_events SET delivered_at = '-infinity' WHERE status = 'DELIVERED'")
    *_, pruned = table_maintenance.prune(
        Retention(delivered=timedelta(days=1), dead=timedelta(days=1)), batch=1
    )
    assert pruned.delivered == 1
