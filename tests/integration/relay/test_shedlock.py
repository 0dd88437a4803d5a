"""Ours and a Java-style relay on one outbox: by ShedLock's own protocol, never both at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from outspark.database.shedlock import ShedLock
from outspark.event import Message
from outspark.hosting import process
from outspark.outcome import Outcome
from outspark.relay import loop, permit
from outspark.relay.lane import Lane
from tests.integration.relay.harness import Broker
from tests.integration.relay.jeap_harness import JeapHarness
from tests.integration.relay.taking_turns import (
    Hold,
    JavaLock,
    Publication,
    Turns,
    breaches,
    clock,
    lock_until,
    side_by_side,
)
from tests.waiting import wait_for

OURS, JAVA = "ours", "java"
BRIEF = timedelta(milliseconds=25)
SHORT = timedelta(milliseconds=2100)
"""The shortest that settings allow where a publish timeout is next to nothing."""


@pytest.fixture
def java(jeap: JeapHarness) -> JavaLock:
    conn = jeap.database.connect()
    conn.execute("SET TimeZone = 'Asia/Tokyo'")
    return JavaLock(conn)


@pytest.fixture
def short(jeap: JeapHarness, monkeypatch: pytest.MonkeyPatch) -> JeapHarness:
    """A place where locks run out soon, and lanes look for them often."""
    monkeypatch.setattr(loop, "CHORES_INTERVAL", 0.05)
    monkeypatch.setattr(permit, "LOCK_MARGIN", 0.1)
    jeap.timeout = 0.1
    jeap.destination = {"publish_timeout": "50ms"}
    jeap.source["jeap"] = {"lock_at_most": SHORT}
    return jeap


# The lock itself


def test_one_holder_at_a_time(jeap: JeapHarness, java: JavaLock) -> None:
    ours, twin, other = jeap.lock(), jeap.lock(), jeap.lock("two")

    assert ours.acquire()
    assert twin.acquire(), "lanes of one run hold it together"
    assert not other.acquire()
    assert not java.acquire()
    assert not java.extend()
    java.release()
    other.release()
    assert not java.acquire(), "only its holder can let go of it"

    ours.release()
    assert java.acquire()
    assert not ours.acquire()
    assert ours.held_for() <= 0
    assert java.extend()
    java.release()
    assert other.acquire()


def test_a_row_of_another_task_is_not_touched(jeap: JeapHarness, java: JavaLock) -> None:
    jeap.ask("INSERT INTO shedlock SELECT 'another task', now(), now(), 'somebody' RETURNING 1")
    before = jeap.ask("SELECT * FROM shedlock")

    jeap.lock().acquire()
    java.acquire()

    assert jeap.ask("SELECT * FROM shedlock WHERE name = 'another task'") == before


def test_it_stays_locked_as_long_as_java_wants_it_at_least(jeap: JeapHarness, java: JavaLock) -> None:
    java.at_least = timedelta(milliseconds=200)
    assert java.acquire()
    until = clock(jeap.conn) + java.at_least
    java.release()
    ours = jeap.lock()

    assert not ours.acquire()
    wait_for(ours.acquire)

    assert clock(jeap.conn) >= until - timedelta(milliseconds=50)


def test_extending_keeps_when_it_was_got(jeap: JeapHarness) -> None:
    ours = jeap.lock()
    ours.acquire()
    first = jeap.ask("SELECT locked_at, lock_until FROM shedlock")[0]

    ours.acquire()

    second = jeap.ask("SELECT locked_at, lock_until FROM shedlock")[0]
    assert second[0] == first[0]
    assert second[1] > first[1]


def test_a_slow_answer_makes_it_shorter(jeap: JeapHarness, java: JavaLock) -> None:
    ours = jeap.lock()
    ours.acquire()
    asking = threading.Thread(target=ours.acquire)
    with java.conn.transaction():
        java.conn.execute("SELECT 1 FROM shedlock FOR UPDATE")
        asking.start()
        waits = "SELECT clock_timestamp() - query_start > '300 ms' FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_for(lambda: jeap.ask(waits) == [(True,)])
    asking.join()

    left = lock_until(jeap.conn) - clock(jeap.conn)
    assert ours.held_for() <= ours.at_most.total_seconds() - 0.3
    assert ours.held_for() <= left.total_seconds() + 0.05


def test_it_is_asked_for_again_only_when_half_of_it_has_gone(jeap: JeapHarness) -> None:
    ours = jeap.lock(at_most=timedelta(milliseconds=400))
    assert ours.hold(0.05)
    first = lock_until(jeap.conn)
    assert ours.hold(0.05)
    assert lock_until(jeap.conn) == first

    wait_for(lambda: ours.hold(0.05) and lock_until(jeap.conn) > first)

    assert ours.held_for() > 0.2
    assert not ours.hold(1.0), "it never holds that long"


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_who_dies_is_followed_when_its_time_has_passed_and_not_before(
    jeap: JeapHarness, java: JavaLock, zone: str
) -> None:
    java.at_most = at_most = timedelta(milliseconds=300)
    ours = jeap.lock(at_most=at_most)
    ours.conn.execute(f"SET TimeZone = '{zone}'".encode())
    pairs: list[tuple[ShedLock | JavaLock, ShedLock | JavaLock]] = [(ours, java), (java, ours)]
    for first, second in pairs:
        wait_for(first.acquire)
        until = lock_until(jeap.conn)

        wait_for(second.acquire)

        assert until <= lock_until(jeap.conn) - at_most
        assert clock(jeap.conn) < until + timedelta(seconds=1)


def believe(self: ShedLock) -> bool:
    """An `acquire` that does not ask."""
    self._until = float("inf")
    return True


class Careless(ShedLock):
    acquire = believe


def own_time(lock: ShedLock | JavaLock) -> datetime | None:
    """Until when the lock is this one's, unless that is over."""
    holder = lock.by if isinstance(lock, JavaLock) else lock.holder
    row = lock.conn.execute("SELECT lock_until FROM shedlock WHERE locked_by = %s", [holder]).fetchone()
    return row[0] if row else None


def take_turns(turns: Turns, who: str, lock: ShedLock | JavaLock) -> None:
    """Get the lock, publish a little and let go of it in good order; every fifth time, die instead."""
    patient = lock.at_most
    for number in range(turns.stop_after):
        dies = number % 5 == 4
        lock.at_most = BRIEF if dies else patient
        while not lock.acquire():
            turns.refused += 1
            if turns.over():
                return
        start = clock(lock.conn)
        turns.begin(who)
        if dies:
            end = own_time(lock) or start
        else:
            times = [clock(lock.conn) for _ in range(4)]
            turns.published += [Publication(who, f"{number}", *times_of) for times_of in pairwise(times)]
            end = clock(lock.conn)
            lock.release()
        turns.holds.append(Hold(who, start, max(start, end)))
        if turns.over():
            return
        turns.await_the_other(who)


def two_hundred_turns(java: JavaLock, ours: ShedLock) -> Turns:
    turns = Turns(stop_after=202)
    side_by_side(lambda: take_turns(turns, OURS, ours), lambda: take_turns(turns, JAVA, java))
    return turns


def test_200_hand_overs_without_ever_holding_it_together(jeap: JeapHarness, java: JavaLock) -> None:
    ours = jeap.lock()
    ours.conn.execute("SET TimeZone = 'America/New_York'")

    turns = two_hundred_turns(java, ours)

    assert breaches(turns) == []
    assert turns.hand_overs() >= 200
    assert turns.refused > 200, "nobody was ever in the other's way"


def test_whoever_ignores_the_lock_is_caught(jeap: JeapHarness, java: JavaLock) -> None:
    lock = jeap.lock()
    careless = Careless(lock.conn, lock.table, lock.name, lock.holder, lock.at_most)

    turns = two_hundred_turns(java, careless)

    assert any("while java had it" in breach for breach in breaches(turns))


# Lanes under the lock


@dataclass(slots=True)
class WatchedBroker(Broker):
    """Notes each publication by the database's clock, and who had the lock then."""

    conn: Any = None
    who: str = OURS
    turns: Turns = field(default_factory=lambda: Turns(0))
    holders: set[tuple[str, bool]] = field(default_factory=set)
    wait: threading.Event | None = None
    """Publishes nothing until it is set."""

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        start = clock(self.conn)
        self.turns.begin(self.who)
        self.holders.update(self.conn.execute(HOLDER).fetchall())
        if self.wait is not None:
            self.wait.wait(10)
        outcomes = Broker.publish(self, messages, timeout)
        end = clock(self.conn)
        self.turns.published += [
            Publication(self.who, message.payload.decode(), start, end) for message in messages
        ]
        return outcomes


HOLDER = """
SELECT split_part(locked_by, '/', 3), lock_until > timezone('utc', clock_timestamp()) FROM shedlock"""


def watch(harness: JeapHarness, who: str = OURS) -> WatchedBroker:
    broker = WatchedBroker(conn=harness.database.connect(), who=who)
    harness.brokers["broker"] = broker
    return broker


def lane_turns(harness: JeapHarness, broker: WatchedBroker) -> None:
    """Start a lane whenever the other relay is at work, stop it when it had a few batches, let go of the lock."""
    turns = broker.turns
    while not turns.over():
        first = len(turns.published)

        def had_some(first: int = first) -> bool:
            mine = [each for each in turns.published[first:] if each.who == OURS]
            return len(mine) >= 4 or turns.over()

        harness.work(had_some)
        harness.lock().release()
        mine = [each for each in turns.published[first:] if each.who == OURS]
        if mine:
            turns.holds.append(Hold(OURS, mine[0].start, mine[-1].end))
        if not turns.over():
            turns.await_the_other(OURS)


def java_turns(java: JavaLock, turns: Turns) -> None:
    while True:
        wait_for(lambda: java.acquire() or turns.over())
        if turns.over():
            return
        start = clock(java.conn)
        turns.begin(JAVA)
        for _ in range(3):
            before = clock(java.conn)
            name = java.relay_one()
            if name is not None:
                turns.published.append(Publication(JAVA, name, before, clock(java.conn)))
        wait_for(lambda start=start: clock(java.conn) > start + 4 * BRIEF)  # type: ignore[misc]
        turns.holds.append(Hold(JAVA, start, clock(java.conn)))
        java.release()
        if not turns.over():
            turns.await_the_other(JAVA)


def twenty_turns(harness: JeapHarness, java: JavaLock) -> WatchedBroker:
    harness.source["batch_size"] = 2
    for number in range(300):
        harness.send(f"{number:03}", key=b"%d" % (number % 20))
    broker = watch(harness)
    broker.turns.stop_after = 22
    side_by_side(lambda: lane_turns(harness, broker), lambda: java_turns(java, broker.turns))
    return broker


def test_lanes_and_a_java_relay_take_turns(short: JeapHarness, java: JavaLock) -> None:
    broker = twenty_turns(short, java)

    turns = broker.turns
    assert breaches(turns) == []
    assert turns.hand_overs() >= 20
    assert broker.holders == {("one", True)}
    names = [each.message for each in turns.published]
    assert len(names) == len(set(names)), "a message went out twice"
    for key in range(20):
        mine = [name for name in names if int(name) % 20 == key]
        assert mine == sorted(mine)


def test_lanes_that_ignore_the_lock_are_caught(
    short: JeapHarness, java: JavaLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShedLock, "acquire", believe)

    broker = twenty_turns(short, java)

    assert any("under the lock of java" in breach for breach in breaches(broker.turns))
    assert ("", True) in broker.holders


def test_a_lane_waits_until_the_time_of_a_dead_java_relay_has_passed(
    short: JeapHarness, java: JavaLock
) -> None:
    java.at_most = timedelta(milliseconds=500)
    assert java.acquire()
    until = lock_until(short.conn)
    broker = watch(short)
    short.send("a", "b", key=b"k")

    short.work_to_the_end()

    assert [each.message for each in broker.turns.published] == ["a", "b"]
    assert until <= broker.turns.published[0].start < until + timedelta(seconds=1)


def test_a_java_relay_waits_until_the_time_of_a_dead_lane_has_passed(
    short: JeapHarness, java: JavaLock
) -> None:
    short.send("a", key=b"k")
    short.work_to_the_end()
    until = lock_until(short.conn)
    assert until > clock(short.conn)

    wait_for(java.acquire)

    assert until <= clock(short.conn) < until + timedelta(seconds=1)


def test_a_table_that_keeps_the_zone_works_in_utc_whatever_that_of_the_server(
    short: JeapHarness, java: JavaLock
) -> None:
    zoned = "ALTER COLUMN lock_until TYPE timestamptz, ALTER COLUMN locked_at TYPE timestamptz"
    short.conn.execute(f"ALTER TABLE shedlock {zoned}".encode())
    short.conn.execute(f"ALTER DATABASE {short.conn.info.dbname} SET TimeZone = 'Asia/Tokyo'".encode())
    java.conn.execute("SET TimeZone = 'UTC'")
    assert java.acquire()
    short.send("a", key=b"k")

    with short.working() as lane:
        wait_for(lambda: is_refused(lane))
        assert short.waiting()
        java.release()
        wait_for(lambda: not short.waiting())
        assert not java.acquire()


def is_refused(lane: Lane) -> bool:
    """Has it asked for the lock in vain?"""
    return any(
        loop.permit.lock and loop.permit.lock._refused for session in lane.sessions for loop in session.loops
    )


def test_two_runs_of_ours_are_never_at_it_together(short: JeapHarness) -> None:
    """Longer than the lock holds by itself, so that it has to be extended."""
    turns = Turns(0)
    lanes = {}
    for run in ("one", "two"):
        # A process keeps one connection per URL, and these two are to be apart.
        short.source["url"] = f"{short.database.url}?application_name={run}"
        broker = watch(short, run)
        broker.turns = turns
        lanes[run] = short.lane(run)
    start = clock(short.conn)
    with short.working(lanes["one"]):
        short.send("first", key=b"k")
        wait_for(lambda: not short.waiting())
        with short.working(lanes["two"]):

            def trickle() -> bool:
                name = f"{len(turns.published)}"
                short.send(name, key=name.encode())
                return clock(short.conn) > start + SHORT * 1.2

            wait_for(trickle)
            wait_for(lambda: not short.waiting())
            assert {each.who for each in turns.published} == {"one"}
    for lane in lanes.values():
        process.discard(lane.spec.sources[0].settings.url.get_secret_value())


def test_a_lane_that_lost_the_lock_publishes_nothing_more(short: JeapHarness, java: JavaLock) -> None:
    """A publisher that overstays its time, longer than the lock holds, is the one way to lose it."""
    broker = watch(short)
    broker.wait = threading.Event()
    short.source["batch_size"] = 1
    short.send("in flight", "left", key=b"k")
    with short.working() as lane:
        wait_for(lambda: broker.holders, what="its first message")
        wait_for(java.acquire, what="the end of the lane's time")
        stolen = clock(short.conn)
        broker.wait.set()
        wait_for(
            lambda: [session.problem for session in lane.sessions if session.problem],
            what="the lane to notice",
        )
        wait_for(lambda: is_refused(lane))
        assert [each.message for each in broker.turns.published] == ["in flight"]
        assert short.states()["left"] == "waiting"
        java.release()
        wait_for(lambda: not short.waiting(), what="its next turn")

    assert [each.message for each in broker.turns.published] == ["in flight", "left"]
    assert broker.turns.published[0].start < stolen < broker.turns.published[1].start
