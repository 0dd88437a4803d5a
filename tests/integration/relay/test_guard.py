"""A fault of a topic, or one that kills a whole type, costs no backlog: its events wait, and all others go on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outspark.delivery import dead_guard, destination
from outspark.outcome import Dead, Retry
from outspark.relay.lane import Lane
from tests.databases import Database
from tests.integration.relay.harness import Harness, close_harness
from tests.integration.relay.jeap_harness import JeapHarness
from tests.integration.relay.omnibox_harness import OmniboxHarness, open_omnibox_harness
from tests.waiting import wait_for

EVENTS = 400
KEYS = 20


@pytest.fixture
def omnibox(database: Database) -> Iterator[OmniboxHarness]:
    harness = open_omnibox_harness(database)
    yield harness
    close_harness(harness)


def enqueue(harness: Harness, type: str, count: int = EVENTS, keys: int = KEYS) -> list[str]:
    names = [f"{type} {number}" for number in range(count)]
    for number, name in enumerate(names):
        harness.enqueue(name, type=type, key=f"{type} {number % keys}")
    return names


def in_order(names: list[str], delivered: list[str], keys: int = KEYS) -> bool:
    """Each key's events were delivered in the order in which they were written, and none twice."""
    return all(
        [name for name in delivered if name in set(names[k::keys])] == names[k::keys] for k in range(keys)
    )


def test_a_missing_topic_costs_nothing_and_holds_up_no_other(leased: Harness) -> None:
    leased.source["batch_size"] = 50
    leased.broker.missing = {"gone"}
    lost = enqueue(leased, "gone")
    sound = enqueue(leased, "here")

    with leased.working() as lane:
        wait_for(lambda: leased.waiting() == EVENTS, what="the events of the other topic")
        assert lane.destinations is not None
        assert not lane.destinations["broker"].open
        assert set(lane.destinations["broker"].topics) == {"gone"}
        # Nothing of the missing topic was tried but the first batch and single probes.
        assert sum(name in set(lost) for name in leased.broker.published()) < 50 + 20
        leased.broker.missing.clear()
        wait_for(lambda: not leased.waiting(), what="the end of it all")

    assert set(leased.states().values()) == {("DELIVERED", 0)}
    assert in_order(lost, leased.broker.delivered())
    assert in_order(sound, leased.broker.delivered())


def test_an_event_behind_one_that_waits_for_its_topic_waits_too(leased: Harness) -> None:
    leased.broker.missing = {"gone"}
    leased.enqueue("first", type="gone", key="k")
    leased.enqueue("second", type="here", key="k")
    leased.enqueue("other", type="here", key="l")

    with leased.working():
        wait_for(lambda: leased.broker.delivered() == ["other"])
        leased.enqueue("third", type="here", key="k")
        leased.enqueue("more", type="here", key="l")
        wait_for(lambda: leased.broker.delivered() == ["other", "more"])
        leased.broker.missing.clear()
        wait_for(lambda: not leased.waiting())

    assert leased.broker.delivered() == ["other", "more", "first", "second", "third"]


def test_events_without_a_key_wait_for_their_topic(leased: Harness) -> None:
    leased.broker.missing = {"gone"}
    leased.enqueue(*(f"gone {n}" for n in range(30)), type="gone")
    leased.enqueue("here", type="here")

    with leased.working():
        wait_for(lambda: leased.broker.delivered() == ["here"])
        leased.broker.missing.clear()
        wait_for(lambda: not leased.waiting())

    assert set(leased.states().values()) == {("DELIVERED", 0)}


def test_the_next_shift_knows_which_topic_is_missing(leased: Harness) -> None:
    """Otherwise each shift would send a batch there to find out."""
    leased.source["batch_size"] = 50
    leased.broker.missing = {"gone"}
    names = enqueue(leased, "gone", 100)

    def turn() -> Lane:
        lane = leased.lane()
        leased.work(lambda: bool(lane.sessions[0].loops) and bool(lane.destinations["broker"].topics), lane)  # type: ignore[index]
        return lane

    turn()
    tried = len(leased.broker.published())
    for _ in range(3):
        turn()
    assert len(leased.broker.published()) <= tried + 6
    leased.broker.missing.clear()
    leased.work_to_the_end()
    assert in_order(names, leased.broker.delivered())


def test_the_report_tells_what_is_closed(leased: Harness) -> None:
    leased.broker.missing = {"gone"}
    leased.enqueue("a", type="gone", key="k")
    lane = leased.lane()
    report = leased.work(lambda: bool(lane.destinations and lane.destinations["broker"].topics), lane)
    (closed,) = report.closed
    assert (closed["destination"], closed["topic"]) == ("broker", "gone")
    assert closed["reason"] == "no topic gone; create it"
    assert report.breakers == {}


def test_a_discarded_event_leaves_no_breaker_behind(leased: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination, "IDLE", 0.5)
    leased.broker.missing = {"gone"}
    leased.enqueue("a", type="gone", key="k")
    with leased.working() as lane:
        assert lane.destinations is not None
        wait_for(lambda: lane.destinations["broker"].topics)  # type: ignore[index]
        leased.conn.execute("DELETE FROM openoutbox_events")
        wait_for(lambda: not lane.destinations["broker"].topics)  # type: ignore[index]


def test_on_demand_what_cannot_be_routed_dies(leased: Harness) -> None:
    leased.source["on_unroutable"] = "dead"
    leased.broker.missing = {"gone"}
    enqueue(leased, "gone", 30)
    leased.work_to_the_end()
    assert set(leased.states().values()) == {("DEAD", 1)}


def test_a_full_topic_kills_nothing_even_on_demand(leased: Harness) -> None:
    leased.source["on_unroutable"] = "dead"
    leased.broker.answers["a"] = [Retry.of_topic("full", "no room")] * 3
    leased.enqueue("a", key="k")
    leased.work_to_the_end()
    assert leased.states() == {"a": ("DELIVERED", 0)}


def test_of_a_jeap_outbox_one_batch_fails_and_the_rest_waits(jeap: JeapHarness) -> None:
    jeap.source["batch_size"] = 50
    jeap.broker.missing = {"gone"}
    names = [f"m{number}" for number in range(200)]
    for number, name in enumerate(names):
        jeap.send(name, key=str(number % KEYS).encode(), topic="gone")

    with jeap.working() as lane:
        wait_for(
            lambda: (
                [len(loop.source.keys.blocked()) for session in lane.sessions for loop in session.loops]
                == [KEYS]
            )
        )
        failed = [name for name, state in jeap.states().items() if state == "INVALID_TOPIC"]
        assert 0 < len(failed) <= 50
        jeap.broker.missing.clear()
        wait_for(lambda: not jeap.waiting())
        assert len(jeap.broker.delivered()) == 200 - len(failed)
        for name in failed:
            jeap.change(name, resend=True)
        wait_for(lambda: len(jeap.broker.delivered()) == 200)

    resent = [name for name in jeap.broker.delivered() if name in set(failed)]
    assert all(
        resent_of == sorted(resent_of, key=names.index)
        for k in range(KEYS)
        if (resent_of := [name for name in resent if name in set(names[k::KEYS])]) is not None
    )


def test_a_missing_topic_on_omnibox(omnibox: OmniboxHarness) -> None:
    omnibox.source["batch_size"] = 50
    omnibox.broker.missing = {"gone"}
    lost = [str(number) for number in range(100)]
    for number, name in enumerate(lost):
        omnibox.write(name, key=f"gone {number % KEYS}", topic="gone")
        omnibox.write(str(1000 + number), key=f"here {number % KEYS}", topic="here")
    with omnibox.working():
        wait_for(lambda: omnibox.waiting() == 100)
        omnibox.broker.missing.clear()
        wait_for(lambda: not omnibox.waiting())
    assert in_order(lost, omnibox.broker.delivered())


def test_a_type_that_only_dies_is_paused(leased: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_guard, "FIRST_PAUSE", 0.2)
    leased.source["batch_size"] = 50
    bad = enqueue(leased, "bad", 200, keys=200)
    for name in bad[:50]:
        leased.broker.answers[name] = [Dead("malformed")]
    sound = enqueue(leased, "good", 100)

    with leased.working():
        wait_for(lambda: len(leased.broker.delivered()) >= 100 and "good 99" in leased.broker.delivered())
        dead = [name for name, (state, _) in leased.states().items() if state == "DEAD"]
        assert 20 <= len(dead) <= 51
        wait_for(lambda: not leased.waiting(), what="the end of the pause")

    assert in_order(sound, leased.broker.delivered())


def test_a_paused_type_is_noted_for_the_next_shift(leased: Harness) -> None:
    leased.source["batch_size"] = 50
    for name in enqueue(leased, "bad", 300, keys=300):
        leased.broker.answers[name] = [Dead("malformed")] * 2
    for _ in range(3):
        lane = leased.lane()
        report = leased.work(lambda: any(loop.dispatcher.paused for loop in lane.sessions[0].loops), lane)  # noqa: B023
        (closed,) = report.closed
        assert closed["type"] == "bad"
        assert "malformed" in closed["reason"]
    assert sum(state == "DEAD" for state, _ in leased.states().values()) <= 60


def test_a_few_bad_events_among_good_ones_still_die(leased: Harness) -> None:
    names = enqueue(leased, "t", 300)
    for name in names[::6]:
        leased.broker.answers[name] = [Dead("malformed")]
    leased.work_to_the_end()
    assert sum(state == "DEAD" for state, _ in leased.states().values()) == 50


def test_without_the_guard_the_backlog_dies(leased: Harness) -> None:
    """The broken variant: it shows that the tests above see a guard at work."""
    leased.source["dead_guard"] = {"enabled": False}
    leased.source["batch_size"] = 50
    for name in enqueue(leased, "bad", 200, keys=200):
        leased.broker.answers[name] = [Dead("malformed")]
    leased.work_to_the_end()
    assert sum(state == "DEAD" for state, _ in leased.states().values()) == 200
