"""Topics and types that are closed: who is to blame, what probes them, and what goes on beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from outspark.delivery import dead_guard
from outspark.delivery import destination as breaker
from outspark.event import Message
from outspark.outcome import Dead, Outcome, Retry
from outspark.relay.lane import Lane
from tests.databases import Database
from tests.integration.relay.harness import Broker, Harness, close_harness
from tests.integration.relay.jeap_harness import JeapHarness
from tests.integration.relay.omnibox_harness import open_omnibox_harness
from tests.waiting import wait_for


@dataclass(slots=True)
class Moody(Broker):
    """Its topic `full` has no room, and it may be too busy for anything."""

    busy: bool = False

    def _answer(self, message: Message) -> Outcome:
        if self.busy:
            return Retry("busy")
        if message.topic == "full":
            return Retry.of_topic("full", "no room")
        return Broker._answer(self, message)


def closed(lane: Lane) -> set[str]:
    assert lane.destinations is not None
    return {topic for destination in lane.destinations.values() for topic in destination.topics}


def count(harness: Harness, state: str) -> int:
    return sum(found == state for found, _ in harness.states().values())


@pytest.mark.parametrize("where", [0, 9], ids=["first of its batch", "last of its batch"])
def test_one_event_that_its_endpoint_refuses_stops_no_other(leased: Harness, where: int) -> None:
    leased.source["batch_size"] = 10
    leased.broker.answers["bad"] = [Retry.of_topic("missing", "HTTP 404")] * 10_000
    names = [f"good {number}" for number in range(100)]
    for name in [*names[:where], "bad", *names[where:]]:
        leased.enqueue(name, type="t", key=name)
    with leased.working():
        wait_for(lambda: len(leased.broker.delivered()) == 100)


def test_a_full_topic_leaves_the_lane_to_others_where_the_unroutable_die(leased: Harness) -> None:
    leased.brokers["broker"] = Moody()
    leased.source |= {"on_unroutable": "dead", "batch_size": 50}
    for number in range(300):
        leased.enqueue(f"f{number}", type="full", key=f"f{number}")
    leased.enqueue("here", type="here", key="here")
    with leased.working() as lane:
        wait_for(lambda: leased.broker.delivered() == ["here"])
        assert closed(lane) == {"full"}
        tried = Counter(name[0] for name in leased.broker.published())["f"]
        assert tried < 100, "only the first batch and single probes go to a full topic"
    assert count(leased, "DEAD") == 0


def test_a_probe_burns_no_attempt_while_its_topic_is_closed(leased: Harness) -> None:
    """It goes out before its own wait is over."""
    moody = leased.brokers["broker"] = Moody()
    leased.source["retry"] = {"base_delay": "1h", "max_delay": "1h", "max_attempts": 2, "jitter": 0.0}
    moody.missing = {"t"}
    leased.enqueue("a", type="t", key="k")
    with leased.working() as lane:
        wait_for(lambda: closed(lane) == {"t"})
        moody.busy = True
        tried = len(moody.published())
        wait_for(lambda: len(moody.published()) >= tried + 3)
        moody.busy = False
        moody.missing.clear()
        wait_for(lambda: not leased.waiting())
    assert leased.states() == {"a": ("DELIVERED", 0)}


def test_an_event_that_fails_for_its_own_sake_dies_though_it_is_the_only_probe(leased: Harness) -> None:
    leased.source["retry"] = {"base_delay": "10ms", "max_delay": "10ms", "max_attempts": 2, "jitter": 0.0}
    leased.broker.missing = {"t"}
    leased.broker.answers["a"] = [Retry("HTTP 500")] * 10_000
    leased.enqueue("a", "b", type="t", key="k")
    with leased.working() as lane:
        wait_for(lambda: closed(lane) == {"t"})
        leased.broker.missing.clear()
        wait_for(lambda: leased.states()["b"][0] == "DELIVERED", timeout=30)
    assert leased.states()["a"][0] == "DEAD"


def test_a_paused_type_and_its_missing_topic_are_probed_together(
    leased: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_guard, "FIRST_PAUSE", 0.5)
    leased.source["batch_size"] = 25
    for number in range(60):
        leased.enqueue(f"x{number}", type="t", key=f"k{number}")
    for number in range(25):
        leased.broker.answers[f"x{number}"] = [Dead("malformed")]
    with leased.working() as lane:
        wait_for(lambda: _pauses(lane))
        leased.broker.missing = {"t"}
        wait_for(lambda: closed(lane) == {"t"})
        leased.broker.missing = set()
        wait_for(lambda: not leased.waiting(), timeout=20)


def test_a_paused_type_stays_so_while_its_destination_is_down(
    leased: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_guard, "FIRST_PAUSE", 0.1)
    monkeypatch.setattr(breaker, "IDLE", 0.3)
    leased.source["batch_size"] = 50
    for number in range(200):
        leased.enqueue(f"x{number}", type="t", key=f"k{number}")
        leased.broker.answers[f"x{number}"] = [Dead("malformed")]
    with leased.working() as lane:
        wait_for(lambda: _pauses(lane))
        leased.broker.down = True
        leased.enqueue("other", type="u", key="u")
        wait_for(lambda: lane.destinations is not None and lane.destinations["broker"].open)
        probes = leased.broker.probes
        wait_for(lambda: leased.broker.probes >= probes + 4, what="an outage longer than the pause")
        leased.broker.down = False
        wait_for(lambda: "other" in leased.broker.delivered())
        assert _pauses(lane)
    assert count(leased, "DEAD") < 70


def test_many_closed_topics_do_not_take_the_lane(leased: Harness) -> None:
    leased.source["batch_size"] = 400
    names = [f"order.{number}" for number in range(400)]
    leased.broker.missing = set(names)
    for name in names:
        leased.enqueue(name, type=name, key=name)
    with leased.working() as lane:
        wait_for(lambda: len(closed(lane)) == 400)
        probed = len(leased.broker.published())
        for number in range(30):
            leased.enqueue(f"g{number}", type="here", key="g")
            wait_for(lambda: leased.broker.delivered()[-1:] == [f"g{number}"])  # noqa: B023
        wait_for(lambda: len(leased.broker.published()) > probed + 30, what="a probe")


def test_of_each_missing_topic_one_batch_of_jeap_fails(jeap: JeapHarness) -> None:
    """Though claims grow while all that is found waits."""
    jeap.source["batch_size"] = 20
    jeap.broker.missing = {"a", "b"}
    for topic in "ab":
        for number in range(300):
            jeap.send(f"{topic}{number}", key=f"{topic}{number}".encode(), topic=topic)

    def failed() -> Counter[str]:
        return Counter(name[0] for name, state in jeap.states().items() if state == "INVALID_TOPIC")

    with jeap.working() as lane:
        wait_for(lambda: _blocked(lane) + failed().total() == 600, timeout=30)
    assert max(failed().values()) <= 20


def test_a_topic_that_nothing_waits_for_is_not_told_for_ever(
    jeap: JeapHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "IDLE", 0.3)
    jeap.broker.missing = {"gone"}
    jeap.send("m", key=b"k", topic="gone")
    with jeap.working() as lane:
        wait_for(lambda: jeap.states() == {"m": "INVALID_TOPIC"})
        wait_for(lambda: not closed(lane))


@pytest.mark.parametrize("ordering", ["key", "none"])
def test_deaths_are_counted_over_shifts(harness: Harness, ordering: str) -> None:
    """A minute is longer than a shift."""
    harness.source["ordering"] = ordering
    for shift in range(6):
        for name in (f"{shift} {number}" for number in range(10)):
            harness.broker.answers[name] = [Dead("malformed")] * 3
            harness.enqueue(name, type="bad", key=name)
        lane = harness.lane()
        harness.work(lambda: not harness.waiting() or _pauses(lane), lane)  # noqa: B023
    assert 20 <= count(harness, "DEAD") <= 40


def test_a_paused_type_stays_so_without_an_order(harness: Harness) -> None:
    harness.source |= {"batch_size": 50, "ordering": "none"}
    for number in range(400):
        harness.broker.answers[f"b{number}"] = [Dead("malformed")] * 3
        harness.enqueue(f"b{number}", type="bad", key=f"b{number}")
    for _ in range(4):
        lane = harness.lane()
        harness.work(lambda: _pauses(lane), lane)  # noqa: B023
    assert count(harness, "DEAD") <= 60


def test_without_an_order_events_wait_by_their_topic(database: Database) -> None:
    """All are of one type."""
    omnibox = open_omnibox_harness(database)
    try:
        omnibox.source |= {"ordering": "none", "batch_size": 20, "lease": "row"}
        omnibox.broker.missing = {"gone"}
        for number in range(50):
            omnibox.write(str(number), key=f"g{number}", topic="gone")
        _write_sound(omnibox, range(1000, 1050))
        with omnibox.working():
            wait_for(lambda: len(omnibox.broker.delivered()) == 50)
            omnibox.broker.missing.clear()
            wait_for(lambda: not omnibox.waiting())
    finally:
        close_harness(omnibox)


def test_without_an_order_another_type_of_the_same_topic_goes_on(database: Database) -> None:
    """Routes may lead it elsewhere."""
    omnibox = open_omnibox_harness(database)
    try:
        omnibox.source |= {"ordering": "none", "batch_size": 5, "lease": "row"}
        omnibox.routes = [{"match": "a", "topic": "A"}, {"match": "b", "topic": "B"}]
        omnibox.broker.missing = {"A"}
        for number in range(20):
            omnibox.write(str(number), type="a", key=f"a{number}")
            omnibox.write(str(100 + number), type="b", key=f"b{number}")
        with omnibox.working():
            wait_for(lambda: len(omnibox.broker.delivered()) == 20)
    finally:
        close_harness(omnibox)


def _write_sound(omnibox: Harness, numbers: Sequence[int]) -> None:
    for number in numbers:
        omnibox.write(str(number), key=f"h{number}", topic="here")  # type: ignore[attr-defined]


def _blocked(lane: Lane) -> int:
    return sum(len(loop.source.keys.blocked()) for session in lane.sessions for loop in session.loops)


def _pauses(lane: Lane) -> bool:
    return any(loop.dispatcher.paused for session in lane.sessions for loop in session.loops)
