"""Readiness while everything answers: events that are due and get nowhere are told, and nothing else is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from outspark.database.names import TableName
from outspark.database.session import connect
from outspark.database.slots import Owner, Slots
from outspark.event import Message
from outspark.observability.metrics import EVENTS_TOTAL, Tally
from outspark.outcome import Outcome, Retry
from outspark.relay.lane import Lane
from outspark.relay.spec import assign_slots
from outspark.spark.monitor import Monitor
from tests.databases import Database
from tests.integration.relay.harness import Broker, Harness, close_harness
from tests.integration.relay.jeap_harness import JeapHarness
from tests.integration.relay.omnibox_harness import OmniboxHarness, open_omnibox_harness
from tests.waiting import wait_for

INTERVAL = 2.0
LEASES = pytest.mark.parametrize("lease", ["row", "slot"])


@dataclass(slots=True)
class Slow(Broker):
    """Answers only when it is let go, or after a while."""

    seconds: float = 20.0
    let_go: threading.Event = field(default_factory=threading.Event)

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        self.let_go.wait(self.seconds)
        return Broker.publish(self, messages, timeout)


@contextmanager
def watching(
    harness: Harness, instance: str = "one", tally: Tally | None = None
) -> Iterator[Callable[[], list[str]]]:
    """A driver; each call looks at what moves and answers what it has to say. `tally` is what shifts reported."""
    settings = harness.settings()
    interval = {"health_check_interval": timedelta(seconds=INTERVAL)}
    settings = settings.model_copy(
        update={
            "hosting": settings.hosting.model_copy(update={"shift": timedelta(milliseconds=50)}),
            "server": settings.server.model_copy(update=interval),
        }
    )
    monitor = Monitor(settings, instance, f"outspark_{instance}")

    def look() -> list[str]:
        monitor.watch(tally or Tally())
        return monitor.stuck()

    try:
        yield look
    finally:
        monitor.close()


@contextmanager
def idle_owner(harness: Harness) -> Iterator[None]:
    """Whoever owns all slots in the name of the relay and does not work on them."""
    settings = harness.settings().sources["outbox"]
    conn = connect(harness.database.url, "idle")
    table = TableName(settings.table, "public")
    slots = Slots(conn, table, (0, 1), settings.slots, Owner.here("test", "one", 0))
    slots.prepare()
    assert len(slots.take()) == 2
    yield
    conn.close()


def told_after(look: Callable[[], list[str]], timeout: float = 15.0) -> tuple[str, float]:
    """The one thing that is told, and after how many seconds."""
    started = time.monotonic()
    wait_for(lambda: bool(look()), timeout=timeout, what="a problem")
    (problem,) = look()
    return problem, time.monotonic() - started


def assert_ready(look: Callable[[], list[str]], seconds: float) -> None:
    """At every look for this long: that something never comes cannot be waited for."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert look() == []


def test_a_source_that_no_lane_owns_is_told_within_an_interval(harness: Harness) -> None:
    with watching(harness) as look:
        harness.enqueue("before", key="k")
        # Lanes that have not been started yet own nothing.
        assert_ready(look, INTERVAL)
        with harness.working():
            wait_for(lambda: look() == [] and not harness.waiting(), what="a lane at work")
        harness.enqueue("after", key="k")
        problem, seconds = told_after(look)
        assert problem.startswith("source outbox: no lane owns a slot of it, and an event has been due for ")
        assert seconds < INTERVAL
        harness.work_to_the_end()
        wait_for(lambda: look() == [], what="readiness")


def test_slots_that_one_lane_should_own_are_told_while_another_lane_works(harness: Harness) -> None:
    harness.hosting["lanes"] = 2
    first, _ = assign_slots(harness.settings(), "one", {})
    with harness.working(Lane(first, harness.destinations())), watching(harness) as look:
        for key in "abcdefgh":
            harness.enqueue(key, key=key)
        problem, _ = told_after(look)
    assert problem.startswith("source outbox: no lane owns its slots 1, and an event has been due for ")
    assert harness.broker.delivered()


@LEASES
def test_a_lane_that_hangs_is_told(harness: Harness, lease: str) -> None:
    harness.source["lease"] = lease
    slow = harness.brokers["broker"] = Slow()
    harness.timeout = 20.0
    harness.destination["publish_timeout"] = "1s"
    harness.enqueue("a", key="k")
    with harness.working(), watching(harness) as look, watching(harness, "two") as standby:
        # Another relay owns the slots of the second: it is for that one to tell.
        wait_for(lambda: standby() == [] and bool(look()), what="a problem")
        (problem,) = look()
        assert problem.startswith("source outbox: lane 0 has sent no query for 2 s, after: ")
        assert standby() == []
        slow.let_go.set()
        wait_for(lambda: look() == [], what="readiness")


def test_a_lane_that_waits_for_a_lock_is_told(harness: Harness) -> None:
    harness.enqueue("a", key="k")
    other = harness.database.connect()
    with watching(harness) as look, other.transaction():
        other.execute("SELECT 1 FROM openoutbox_events FOR UPDATE")
        with harness.working():
            problem, _ = told_after(look)
            other.execute("COMMIT")
            wait_for(lambda: look() == [], what="readiness")
        other.execute("BEGIN")
    assert problem.startswith(
        "source outbox: lane 0 has waited for a lock for 2 s, in: Claim the next events "
    )


def test_a_table_that_is_locked_as_a_whole_holds_nobody_up(harness: Harness) -> None:
    other = harness.database.connect()
    with watching(harness) as look, other.transaction():
        look()
        other.execute("LOCK TABLE openoutbox_events IN ACCESS EXCLUSIVE MODE")
        problem, seconds = told_after(look)
    assert problem == "source outbox: its table is locked as a whole, so no lane can claim from it"
    assert seconds < 2 * INTERVAL


@LEASES
def test_an_event_in_backoff_hides_no_other_that_stands_still(harness: Harness, lease: str) -> None:
    harness.source["lease"] = lease
    harness.destination["publish_timeout"] = "1s"
    harness.enqueue("tried", "behind it", key="k")
    harness.set("tried", attempts=1, available_at="infinity")
    with idle_owner(harness), watching(harness) as look:
        assert_ready(look, 2 * INTERVAL)
        harness.enqueue("other", key="l")
        problem, seconds = told_after(look)
    assert problem.startswith("source outbox: its lanes deliver nothing, and an event has been due for ")
    assert seconds < INTERVAL + 1.5


@pytest.fixture
def omnibox(database: Database) -> Iterator[OmniboxHarness]:
    harness = open_omnibox_harness(database)
    yield harness
    close_harness(harness)


def test_an_event_in_backoff_hides_no_other_on_omnibox(omnibox: OmniboxHarness) -> None:
    omnibox.destination["publish_timeout"] = "1s"
    omnibox.write("1", key="k")
    omnibox.conn.execute(
        "UPDATE outbox_events SET last_error = 'no', scheduled_at = now() + interval '1 day'"
    )
    omnibox.write("2", key="k")
    with idle_owner(omnibox), watching(omnibox) as look:
        assert_ready(look, 2 * INTERVAL)
        omnibox.write("3", key="l")
        problem, _ = told_after(look)
    assert problem.startswith("source outbox: its lanes deliver nothing, and an event has been due for ")


def test_jeap_messages_that_stand_still_are_told_later(jeap: JeapHarness) -> None:
    jeap.destination["publish_timeout"] = "1s"
    jeap.send("a", key=b"k")
    with idle_owner(jeap), watching(jeap) as look:
        # Nothing tells whether it waits for its next try, so that it is given the time of the longest wait.
        assert_ready(look, INTERVAL)
        problem, _ = told_after(look)
    assert problem.startswith("source outbox: its lanes deliver nothing, and an event has been due for ")


def test_a_jeap_message_that_fails_again_and_again_is_no_reason(jeap: JeapHarness) -> None:
    jeap.destination["publish_timeout"] = "1s"
    jeap.broker.answers["a"] = [Retry("no")] * 10_000
    jeap.send("a", "behind it", key=b"k")
    tally = Tally()
    with jeap.working() as lane, watching(jeap, tally=tally) as look:
        wait_for(lambda: lane.tally.value(EVENTS_TOTAL, source="outbox") > 0, what="a try")

        def report_and_look() -> list[str]:
            tally.merge(Tally.from_json(lane.tally.to_json()))
            return look()

        assert_ready(report_and_look, 8.0)
    assert jeap.broker.delivered() == []


@pytest.mark.parametrize("kept", ["in backoff", "parked"])
def test_events_that_wait_behind_one_that_failed_are_no_reason(harness: Harness, kept: str) -> None:
    harness.destination["publish_timeout"] = "1s"
    harness.source["retry"] = {
        "base_delay": "1h",
        "max_delay": "1h",
        "max_attempts": 1 if kept == "parked" else 9,
    }
    harness.source["on_dead"] = "park"
    harness.broker.answers["a"] = [Retry("no")]
    harness.enqueue("a", "b", key="k")
    with harness.working(), watching(harness) as look:
        wait_for(lambda: "a" in harness.broker.published(), what="the first try")
        assert_ready(look, 2 * INTERVAL)
    assert harness.broker.delivered() == []


@LEASES
def test_a_backlog_that_is_worked_off_slowly_is_no_reason(harness: Harness, lease: str) -> None:
    harness.source |= {"lease": lease, "batch_size": 1}
    harness.brokers["broker"] = Slow(seconds=0.8)
    harness.destination["publish_timeout"] = "1s"
    for number in range(20):
        harness.enqueue(str(number), key=f"k{number % 3}")
    harness.conn.execute("UPDATE openoutbox_events SET available_at = now() - interval '1 day'")
    with harness.working(), watching(harness) as look:
        assert_ready(look, 3 * INTERVAL)
    assert 2 < len(harness.broker.delivered()) < 20
