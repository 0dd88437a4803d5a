"""What one shift writes down for the next: what waits for a destination that is down, and where to begin to look."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from outspark.delivery import destination
from outspark.outcome import Retry
from outspark.relay.handover import DestinationBacklog, HandoverNote
from outspark.relay.lane import Lane
from outspark.relay.loop import SourceLoop
from outspark.relay.low_water import BEGINNING, LowWater
from tests.databases import Database
from tests.integration.relay.harness import Harness, close_harness, open_harness
from tests.integration.relay.test_ownership import OwnerOfSlots
from tests.waiting import wait_for

WAITING = DestinationBacklog(
    destination="bus", since=0.0, reason="away", probe_in=1.0, pause=2.0, keys=["k"], types=[]
)
NOTE = HandoverNote(instance="one", slots=[0, 1], waiting=[WAITING])
PAUSE = 1.0
"""Seconds between two probes."""


@pytest.fixture(params=["row", "slot"])
def two(request: pytest.FixtureRequest, database: Database) -> Iterator[Harness]:
    """Events of type `left.*` and `right.*` go to brokers of these names; the left one is down."""
    harness = open_harness(database, "left", "right")
    harness.source["lease"] = request.param
    harness.routes = [{"match": f"{name}.*", "destination": name} for name in ("left", "right")]
    harness.brokers["left"].down = True
    yield harness
    close_harness(harness)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """Where every look began."""
    seen: list[datetime] = []
    begin = LowWater.begin

    def spy(self: LowWater) -> datetime:
        seen.append(begin(self))
        return seen[-1]

    monkeypatch.setattr(LowWater, "begin", spy)
    return seen


def first_shift(two: Harness) -> None:
    two.enqueue("l1", type="left.t", key="both")
    two.enqueue("r1", type="right.t", key="both")
    two.enqueue("l2", type="left.t")
    two.enqueue("r2", type="right.t", key="right only")
    two.work(lambda: two.brokers["right"].delivered() == ["r2"])
    two.enqueue("r3", type="right.t", key="right only")
    two.enqueue("l3", type="left.t")


def test_what_waits_for_a_destination_that_is_down_is_not_tried_again_by_the_next_shift(two: Harness) -> None:
    first_shift(two)
    offered = two.brokers["left"].published()

    two.work(lambda: two.brokers["right"].delivered() == ["r2", "r3"])
    assert two.brokers["left"].published() == offered

    two.brokers["left"].down = False
    two.work_to_the_end()
    assert sorted(two.brokers["left"].delivered()) == ["l1", "l2", "l3"]
    assert two.brokers["right"].delivered() == ["r2", "r3", "r1"]
    assert set(two.states().values()) == {("DELIVERED", 0)}


def test_probes_keep_their_rhythm_over_shifts_that_are_shorter_than_the_pause_between_them(
    two: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination, "LONGEST_PROBE", PAUSE)
    processes = [two.destinations(), two.destinations()]
    for destinations in processes:
        destinations["left"].pause = PAUSE
    left = two.brokers["left"]

    def work_in_turns(until: Callable[[], bool]) -> None:
        """Shifts of a fifth of the pause, each in the other process; it keeps its destinations as they are."""
        for shift in range(50):
            over = time.monotonic() + PAUSE / 5
            lane = Lane(two.spec(), processes[shift % 2])
            two.work(lambda over=over: until() or time.monotonic() > over, lane)  # type: ignore[misc]
            if until():
                return
        raise AssertionError(f"not done in 50 shifts: {two.states()}")

    two.enqueue("l1", type="left.t", key="k")
    started = time.monotonic()
    work_in_turns(lambda: left.probes == 2)
    assert time.monotonic() - started >= 2 * PAUSE
    assert left.published() == ["l1"]

    left.down = False
    work_in_turns(lambda: not two.waiting())
    assert left.probes == 3
    assert two.states() == {"l1": ("DELIVERED", 0)}


def test_another_run_has_other_routes_and_finds_out_by_itself(two: Harness) -> None:
    first_shift(two)
    offered = two.brokers["left"].published()

    two.work(lambda: two.brokers["right"].delivered() == ["r2", "r3"], two.lane(instance="two"))
    assert len(two.brokers["left"].published()) > len(offered)


def test_a_note_with_a_destination_that_nobody_knows_is_left_alone(
    two: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SourceLoop, "_handover_note", lambda *_: NOTE)
    two.enqueue("r1", type="right.t", key="k")
    two.work_to_the_end()
    two.enqueue("r2", type="right.t", key="k")
    two.work_to_the_end()


def test_a_note_goes_to_the_next_owner_of_the_same_slots_alone(harness: Harness) -> None:
    first, second, third = (OwnerOfSlots(harness) for _ in range(3))
    first.take()
    leave(first)

    second.take()
    assert second.ownership.inherited is not None
    note, age = second.ownership.inherited
    assert note == NOTE
    assert 0 <= age < 5

    second.vanish()
    wait_for(lambda: third.take() and third.ownership.active == [0, 1])
    assert third.ownership.inherited is None


def test_an_owner_of_fewer_slots_has_no_use_for_a_note(harness: Harness) -> None:
    first, second = OwnerOfSlots(harness), OwnerOfSlots(harness)
    first.take()
    leave(first)
    second.slots.wanted = (0,)
    second.take()
    assert second.ownership.active == [0]
    assert second.ownership.inherited is None


def test_a_note_that_cannot_be_read_is_left_alone(harness: Harness) -> None:
    first, second = OwnerOfSlots(harness), OwnerOfSlots(harness)
    first.take()
    leave(first)
    harness.conn.execute("UPDATE outspark_slots SET note = 'from another version' WHERE slot = 0")
    second.take()
    assert second.ownership.inherited is None


def leave(owner: OwnerOfSlots) -> None:
    owner.ownership.leave(NOTE)
    owner.conn.execute("SELECT pg_advisory_unlock_all()")


def drain_in_part(harness: Harness) -> None:
    """A first shift that leaves half of a backlog to the next."""
    harness.source["batch_size"] = 5
    harness.enqueue(*(f"e{number:02}" for number in range(60)), key="many")
    harness.work(lambda: len(harness.broker.delivered()) >= 30)


def test_the_next_shift_begins_to_look_where_the_last_one_stopped(
    leased: Harness, looks: list[datetime]
) -> None:
    drain_in_part(leased)
    last = looks[-1]
    assert last != BEGINNING
    before = len(looks)

    leased.work_to_the_end()
    assert looks[before] >= last
    assert leased.broker.delivered() == [f"e{number:02}" for number in range(60)]


def test_a_head_whose_wait_ends_between_two_shifts_is_not_left_behind(
    leased: Harness, looks: list[datetime]
) -> None:
    leased.source["retry"] = {"base_delay": "1s", "max_delay": "1s", "max_attempts": 3, "jitter": 0.0}
    leased.enqueue("a", "b", key="k")
    leased.broker.answers["a"] = [Retry("not now")]
    drain_in_part(leased)
    assert "a" not in leased.broker.delivered()
    before = len(looks)
    time.sleep(1.1)

    leased.work_to_the_end()
    assert looks[before] == BEGINNING
    delivered = leased.broker.delivered()
    assert delivered.index("a") < delivered.index("b") < delivered.index("e59")
