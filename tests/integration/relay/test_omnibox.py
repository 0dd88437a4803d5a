"""A lane on an omni-box outbox: what it sends, in which order, and what it writes down, with and without partitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest
from psycopg.types.json import Jsonb

from outspark.contracts.omnibox.table import ready_index
from outspark.database.slots import Owner
from outspark.observability.metrics import LEASES_LOST_TOTAL, REAPED_TOTAL
from outspark.outcome import Dead, Retry
from outspark.relay.lane import Lane
from tests.databases import Database
from tests.integration.relay.harness import close_harness
from tests.integration.relay.omnibox_harness import TABLE, OmniboxHarness, open_omnibox_harness

FAILED = Retry("no luck")
GONE = Owner("test", "another", 0, Owner.here("", "", 0).host, 2**22 - 1)


@pytest.fixture(params=[False, True], ids=["plain", "partitioned"])
def harness(request: pytest.FixtureRequest, database: Database) -> Iterator[OmniboxHarness]:
    harness = open_omnibox_harness(database, partitioned=request.param)
    yield harness
    close_harness(harness)


@pytest.fixture(params=["row", "slot"])
def leased(request: pytest.FixtureRequest, harness: OmniboxHarness) -> OmniboxHarness:
    """A place for each way of leasing."""
    harness.source["lease"] = request.param
    return harness


def test_delivered(leased: OmniboxHarness) -> None:
    leased.write("1", "2", key="a")
    leased.write("3", key="b")

    leased.work_to_the_end()

    assert sorted(leased.broker.delivered()) == ["1", "2", "3"]
    assert leased.states() == dict.fromkeys("123", ("completed", 0))
    times = (
        "SELECT count(*) FROM outbox_events WHERE completed_at BETWEEN created_at AND clock_timestamp()"
        " AND updated_at BETWEEN created_at AND clock_timestamp() AND locked_at IS NULL AND locked_by IS NULL"
    )
    assert leased.ask(times) == [(3,)]


def test_order_is_kept_per_key_whatever_the_schedule_says(leased: OmniboxHarness) -> None:
    """A head that was put off is still before what came after it."""
    leased.write(*map(str, range(1, 6)), key="a")
    leased.write(*map(str, range(6, 11)), key="b")
    leased.ask(
        "UPDATE outbox_events SET scheduled_at = created_at - payload::text::int * interval '1 s' RETURNING 1"
    )

    leased.work_to_the_end()

    delivered = list(map(int, leased.broker.delivered()))
    assert [number for number in delivered if number <= 5] == [1, 2, 3, 4, 5]
    assert [number for number in delivered if number > 5] == [6, 7, 8, 9, 10]


def test_a_failure_counts_and_the_key_waits_behind_it(leased: OmniboxHarness) -> None:
    leased.write("1", "2", "3")
    leased.broker.answers["2"] = [FAILED]

    leased.work_to_the_end()

    assert leased.broker.published() == ["1", "2", "2", "3"]
    assert leased.states() == {"1": ("completed", 0), "2": ("completed", 1), "3": ("completed", 0)}


def test_a_retry_survives_the_lane(leased: OmniboxHarness) -> None:
    leased.source["retry"] = {"base_delay": "400ms", "jitter": 0.0}
    leased.write("1", "2")
    leased.broker.answers["1"] = [FAILED]
    leased.work(lambda: leased.states()["1"] == ("pending", 1))
    assert leased.error("1") == "no luck"

    leased.work_to_the_end()

    assert leased.broker.published() == ["1", "1", "2"]


def test_a_destination_that_is_down_costs_no_attempt(leased: OmniboxHarness) -> None:
    leased.write("1", "2")
    leased.broker.down = True
    leased.work(lambda: bool(leased.broker.batches) and leased.row("1", "last_error") != (None,))
    assert leased.states() == {"1": ("pending", 0), "2": ("pending", 0)}
    assert leased.row("1", "locked_at", "locked_by") == (None, None)

    leased.broker.down = False
    leased.work_to_the_end()

    assert leased.broker.delivered() == ["1", "2"]
    assert leased.states() == {"1": ("completed", 0), "2": ("completed", 0)}


def test_the_row_says_how_many_attempts_it_has(leased: OmniboxHarness) -> None:
    """The settings of the place would give each of them three."""
    leased.write("1", key="a", max_attempts=2)
    leased.write("2", key="a")
    leased.write("3", key="b", max_attempts=5)
    leased.broker.answers["1"] = [FAILED] * 5
    leased.broker.answers["3"] = [FAILED] * 4

    leased.work_to_the_end()

    assert leased.states() == {"1": ("failed", 2), "2": ("completed", 0), "3": ("completed", 4)}
    assert leased.error("1") == "gave up after 2 attempts: no luck"
    assert leased.broker.published().count("1") == 2


def test_what_can_never_pass_has_failed_with_no_attempt_left(leased: OmniboxHarness) -> None:
    """omni-box takes a failed row with attempts left for a broken one, and reads none of its batch."""
    leased.write("1", "2")
    leased.broker.answers["1"] = [Dead("too large")]

    leased.work_to_the_end()

    assert leased.states() == {"1": ("failed", 6), "2": ("completed", 0)}
    assert leased.row("1", "last_error", "completed_at", "locked_by") == ("too large", None, None)


def test_fewer_attempts_than_when_it_was_claimed(leased: OmniboxHarness) -> None:
    leased.write("1")
    leased.broker.answers["1"] = [FAILED]
    leased.watched.meanwhile = lambda: leased.change("1", max_attempts=1)

    leased.work_to_the_end()

    assert leased.states() == {"1": ("failed", 1)}


def test_park_keeps_the_key_behind_a_failed_event(leased: OmniboxHarness) -> None:
    leased.source["on_dead"] = "park"
    leased.write("1", "2", key="a")
    leased.write("3", key="b")
    leased.broker.answers["1"] = [Dead("too large")]
    leased.work(lambda: leased.waiting() == 1)

    # A new lane learns from the table what the last one knew.
    leased.write("4", key="b")
    leased.work(lambda: leased.waiting() == 1)
    assert leased.broker.delivered() == ["3", "4"]

    leased.change("1", status="pending", attempts_made=0)
    leased.work_to_the_end()
    assert leased.broker.delivered() == ["3", "4", "1", "2"]


def test_a_scheduled_event_holds_nobody_back_and_takes_its_place_when_due(leased: OmniboxHarness) -> None:
    leased.write("1", delay=timedelta(hours=1))
    leased.write("2")
    leased.work(lambda: leased.waiting() == 1)
    leased.write("3")
    leased.ask("UPDATE outbox_events SET scheduled_at = created_at RETURNING 1")

    leased.work_to_the_end()

    assert leased.broker.delivered() == ["2", "1", "3"]


def test_a_scheduled_event_goes_out_when_it_falls_due(leased: OmniboxHarness) -> None:
    leased.write("1", delay=timedelta(milliseconds=300))
    due = leased.row("1", "scheduled_at")

    leased.work_to_the_end()

    assert leased.row("1", "scheduled_at") == due
    assert leased.ask("SELECT completed_at >= scheduled_at FROM outbox_events") == [(True,)]


def test_what_another_relay_has_locked_is_not_touched(leased: OmniboxHarness) -> None:
    leased.write("1", key="a")
    assert leased.foreign_claim() == ["1"]
    leased.write("2", key="b")

    leased.work(lambda: leased.waiting() == 1)

    assert leased.broker.published() == ["2"]
    assert leased.row("1", "status", "attempts_made", "locked_by") == ("pending", 0, "worker-7")

    leased.change("1", locked_at=None, locked_by=None)
    leased.work_to_the_end()
    assert leased.broker.published() == ["2", "1"]


def test_what_we_have_locked_is_not_given_to_another_relay(harness: OmniboxHarness) -> None:
    harness.write("1", "2", "3", key="a")
    got: list[str] = []
    harness.watched.meanwhile = lambda: got.extend(harness.foreign_claim())

    harness.work_to_the_end()

    assert harness.broker.delivered() == ["1", "2", "3"]
    assert got == []


def test_a_lock_that_another_relay_took_over_is_left_to_it(harness: OmniboxHarness) -> None:
    """omni-box's relay may take a lock that it thinks too old, ours as well."""
    harness.write("1", key="a")
    harness.watched.meanwhile = lambda: harness.change("1", locked_by="worker-7")

    report = harness.work(lambda: bool(harness.broker.messages), lane := harness.lane())

    assert harness.row("1", "status", "locked_by") == ("pending", "worker-7")
    assert lane.tally.value(LEASES_LOST_TOTAL, source="outbox") == 1
    assert report.problems == []


def test_under_lease_slot_another_relay_that_was_faster_keeps_its_lock(harness: OmniboxHarness) -> None:
    harness.source["lease"] = "slot"
    harness.write("1", key="a")
    got: list[str] = []
    harness.watched.meanwhile = lambda: got.extend(harness.foreign_claim())

    harness.work(lambda: bool(harness.broker.messages))

    assert got == ["1"]
    assert harness.row("1", "status", "locked_by") == ("pending", "worker-7")


def test_a_lock_that_ran_out_is_given_back_and_counted(leased: OmniboxHarness) -> None:
    leased.source["lease_timeout"] = "1s"
    leased.write("1", key="a")
    leased.write("2", key="b", max_attempts=1)
    leased.foreign_claim()
    leased.ask("UPDATE outbox_events SET locked_at = now() - interval '1 minute' RETURNING 1")
    lane = leased.lane()

    leased.work_to_the_end(lane)

    assert leased.states() == {"1": ("completed", 1), "2": ("failed", 1)}
    assert leased.error("2") == "lease of worker-7 ran out"
    assert lane.tally.value(REAPED_TOTAL, source="outbox") == 2


def let_a_lane_vanish(harness: OmniboxHarness) -> None:
    """Its slots look as if its process had been killed."""
    harness.work(lambda: bool(harness.ask("SELECT 1 FROM outspark_slots")))
    harness.conn.execute("UPDATE outspark_slots SET clean = false, owner = %s", [str(GONE)])


def test_what_a_vanished_lane_had_locked_is_adopted(harness: OmniboxHarness) -> None:
    harness.source["slots"] = 1
    let_a_lane_vanish(harness)
    harness.write("1", key="a")
    harness.write("2", key="b", max_attempts=1)
    harness.write("3", key="a")
    for name in ("1", "2"):
        harness.change(name, locked_at="now", locked_by="outspark/test/another/0/0/1")

    harness.work_to_the_end()

    assert harness.broker.published() == ["1", "3"]
    assert harness.states() == {"1": ("completed", 1), "2": ("failed", 1), "3": ("completed", 0)}
    assert harness.error("2") == "the relay ended while this event was in flight"


def test_under_lease_slot_a_suspect_is_counted_before_it_goes_out(harness: OmniboxHarness) -> None:
    harness.source |= {"slots": 1, "lease": "slot"}
    let_a_lane_vanish(harness)
    harness.write("1", key="a", max_attempts=1)
    harness.write("2", key="a")

    harness.work_to_the_end()

    assert harness.broker.published() == ["2"]
    assert harness.states() == {"1": ("failed", 1), "2": ("completed", 1)}


def test_without_order_relays_compete(harness: OmniboxHarness) -> None:
    harness.source["ordering"] = "none"
    harness.write(*map(str, range(20)))
    harness.broker.answers["7"] = [FAILED]

    harness.work_to_the_end()

    assert sorted(map(int, harness.broker.delivered())) == list(range(20))
    assert harness.states()["7"] == ("completed", 1)


def test_topic_key_and_headers_go_out_as_omni_box_sends_them(leased: OmniboxHarness) -> None:
    (enqueued,) = leased.write(
        "1",
        key="7",
        topic="orders.v2",
        headers={"tenant": "a", "event_id": "not this"},
        schema_version="2",
        trace_id="t-1",
        correlation_id="c-1",
        causation_id="u-1",
    )

    leased.work_to_the_end()

    (message,) = leased.broker.messages
    assert (message.id, message.topic, message.key, message.payload) == (
        str(enqueued.id),
        "orders.v2",
        "7",
        b"1",
    )
    assert dict(message.headers) == {
        "tenant": "a",
        "event_id": str(enqueued.id),
        "event_type": "order.paid",
        "schema_version": "2",
        "trace_id": "t-1",
        "correlation_id": "c-1",
        "causation_id": "u-1",
    }


def test_a_route_may_name_another_topic(harness: OmniboxHarness) -> None:
    harness.routes = [
        {"match": "order.*", "topic": "shop.{topic}"},
        {"match": "user.*", "topic": "{type}"},
        {"match": "*"},
    ]
    for name, type in enumerate(("order.paid", "user.born", "other")):
        harness.write(str(name), type=type)

    harness.work_to_the_end()

    assert [message.topic for message in harness.broker.messages] == ["shop.orders", "user.born", "orders"]


def test_the_full_envelope_is_filled_from_the_columns(harness: OmniboxHarness) -> None:
    harness.destination["envelope"] = "full"
    harness.write("1", key="7", schema_version="2", correlation_id="c-1")

    harness.work(lambda: not harness.waiting() or bool(harness.broker.batches))
    (batch,) = harness.broker.batches
    found = json.loads(batch[0])

    created_at, aggregate_id = harness.row("1", "created_at", "aggregate_id")
    assert found == {
        "schema_version": "2",
        "event_type": "order.paid",
        "aggregate_type": "order",
        "aggregate_id": str(aggregate_id),
        "timestamp": created_at.isoformat(),
        "correlation_id": "c-1",
        "payload": 1,
    }


@pytest.mark.parametrize("headers", [["x"], "text", 7])
def test_headers_that_are_no_object_fail_with_a_reason(harness: OmniboxHarness, headers: object) -> None:
    harness.write("1", "2")
    harness.change("1", headers=Jsonb(headers))

    harness.work_to_the_end()

    assert harness.states() == {"1": ("failed", 6), "2": ("completed", 0)}
    assert harness.error("1").startswith("headers must be a JSON object of strings, not")


def test_with_our_index_all_is_the_same(leased: OmniboxHarness) -> None:
    leased.conn.execute(ready_index(TABLE).encode())
    leased.write("1", "2", "3")
    leased.broker.answers["2"] = [FAILED]

    leased.work_to_the_end()

    assert leased.broker.published() == ["1", "2", "2", "3"]


def test_an_error_is_cut_to_what_the_column_holds(harness: OmniboxHarness) -> None:
    harness.write("1", max_attempts=1)
    harness.broker.answers["1"] = [Retry("é" * 3000)]

    harness.work_to_the_end()

    assert len(harness.error("1")) == 2000


def test_lanes_of_two_shifts_hand_over(harness: OmniboxHarness) -> None:
    """What one lane leaves in good order the next goes on with."""
    harness.write(*map(str, range(5)))
    first: Lane = harness.lane()
    harness.work(lambda: len(harness.broker.messages) >= 2, first)

    harness.work_to_the_end()

    assert harness.broker.delivered() == list("01234")
