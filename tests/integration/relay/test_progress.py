"""Readiness while everything answers: events that are due and get nowhere are told, and nothing else is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from outspark.event import Message
from outspark.outcome import Outcome, Retry
from outspark.spark.monitor import Monitor
from tests.integration.relay.place import Broker, Place
from tests.waiting import wait_for


@dataclass(slots=True)
class Hanging(Broker):
    """Answers nothing until it is let go."""

    let_go: threading.Event = field(default_factory=threading.Event)

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        self.let_go.wait(20)
        return Broker.publish(self, messages, timeout)


@contextmanager
def watching(place: Place, instance: str = "one") -> Iterator[Monitor]:
    """A driver with short intervals: 0.15 s without an owner are too long, or 2.3 s without a delivery."""
    settings = place.settings()
    settings = settings.model_copy(
        update={
            "relay": settings.relay.model_copy(update={"shift": timedelta(milliseconds=50)}),
            "server": settings.server.model_copy(
                update={"health_check_interval": timedelta(milliseconds=50)}
            ),
        }
    )
    monitor = Monitor(settings, instance, f"outspark_{instance}")
    try:
        yield monitor
    finally:
        monitor.close()


def assert_ready(monitor: Monitor, seconds: float) -> None:
    """At every look for this long: that something never comes cannot be waited for."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert monitor.problems() == []


def test_a_source_that_no_lane_owns_is_not_ready_while_events_are_due(place: Place) -> None:
    with place.working():
        wait_for(lambda: bool(place.ask("SELECT to_regclass('outspark_slots')")[0][0]), what="our table")
    with watching(place) as monitor:
        assert_ready(monitor, 0.5)
        place.enqueue("a", key="k")
        wait_for(lambda: bool(monitor.problems()), what="a problem")
        (problem,) = monitor.problems(lanes=["why"])
        assert problem.startswith("source outbox: no lane owns a slot of it, and an event has been due for ")
        assert problem.endswith(" s; a lane says: why")
        place.work_to_the_end()
        wait_for(lambda: monitor.problems() == [], what="readiness")


def test_lanes_that_deliver_nothing_are_not_ready(place: Place) -> None:
    place.source["lease"] = "slot"
    hanging = place.brokers["broker"] = Hanging()
    place.timeout = 20.0
    place.enqueue("a", key="k")
    with place.working(), watching(place) as monitor, watching(place, "two") as standby:
        # Another relay owns the slots of the second: it is for that one to tell.
        wait_for(lambda: standby.problems() == [] and bool(monitor.problems()), what="a problem")
        (problem,) = monitor.problems()
        assert problem.startswith("source outbox: its lanes deliver nothing, and an event has been due for ")
        assert standby.problems() == []
        hanging.let_go.set()
        wait_for(lambda: monitor.problems() == [], what="readiness")


@pytest.mark.parametrize("kept", ["in backoff", "parked"])
def test_events_that_wait_behind_one_that_failed_are_no_reason(place: Place, kept: str) -> None:
    place.source["retry"] = {
        "base_delay": "1h",
        "max_delay": "1h",
        "max_attempts": 1 if kept == "parked" else 9,
    }
    place.source["on_dead"] = "park"
    place.broker.answers["a"] = [Retry("no")]
    place.enqueue("a", "b", key="k")
    with place.working(), watching(place) as monitor:
        wait_for(lambda: "a" in place.broker.published(), what="the first try")
        assert_ready(monitor, 3.0)
    assert place.broker.delivered() == []
