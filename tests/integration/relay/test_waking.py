"""How soon a lane sees a new event: polling at the latest, and at once when the doorbell is installed.

Only sparse bursts can tell: in a dense stream the next event wakes the lane for the one it missed.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import psycopg
import pytest

from outspark.database.doorbell import doorbell_ddl
from outspark.database.names import TableName, lock_class
from outspark.outcome import Retry
from outspark.relay import assembly
from outspark.relay.waking import QUICK, Doorbell
from tests.integration.relay.harness import Harness
from tests.waiting import wait_for

FALLBACK = 60.0
LATE = 3.0
SILENCE = 0.23
BURSTS = 25


@dataclass(slots=True)
class DistantDoorbell(Doorbell):
    """A few milliseconds from the database, so that a writer can get in between a poll and the sleep."""

    def _try(self) -> bool:
        self.conn.execute("SELECT pg_sleep(0.004)")
        return Doorbell._try(self)


@dataclass(slots=True)
class ForgetfulDoorbell(DistantDoorbell):
    poll_again: bool = False


@pytest.fixture
def street(harness: Harness) -> Harness:
    harness.conn.execute(doorbell_ddl(TableName("openoutbox_events"), 1).encode())
    harness.source.update(doorbell=True, poll_interval=f"{FALLBACK:g}s")
    return harness


def missed_bursts(street: Harness, bursts: int) -> int:
    """Write in bursts with silence after each; did one leave something lying about, with nobody to ring for it?

    The first events of a burst wake the lane for good; the last one comes when it may just be falling asleep.
    """
    rng = random.Random(5)
    written: list[str] = []
    missed = 0
    with street.working() as lane:
        wait_for(lambda: lane.sessions and lane.sessions[0].holds_baton)
        for burst in range(bursts):
            for number in range(size := rng.randint(4, 12)):
                if number == size - 1:
                    street.ask("SELECT pg_sleep(%s)", rng.uniform(0, 0.012))
                written.append(f"{burst}.{number}")
                street.enqueue(written[-1], key="k")
            try:
                wait_for(lambda: len(street.broker.arrived) == len(written), timeout=LATE)
            except AssertionError:
                missed += 1
                break
            street.ask("SELECT pg_sleep(%s)", SILENCE)
    return missed


def test_the_doorbell_misses_nothing(street: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "Doorbell", DistantDoorbell)

    assert missed_bursts(street, BURSTS) == 0


def test_without_the_second_poll_it_does(street: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "Doorbell", ForgetfulDoorbell)

    assert missed_bursts(street, 4 * BURSTS) == 1


def test_a_lane_beyond_the_doorbell_polls(street: Harness) -> None:
    street.conn.execute("DROP TRIGGER outspark_doorbell ON openoutbox_events")
    street.source["poll_interval"] = "50ms"
    street.enqueue("a")

    street.work_to_the_end()

    assert street.broker.delivered() == ["a"]


def test_polling_finds_what_comes_after_a_long_silence(harness: Harness) -> None:
    harness.source["poll_interval"] = "100ms"
    with harness.working() as lane:
        wait_for(lambda: lane.sessions and lane.sessions[0].holds_baton)
        harness.ask("SELECT pg_sleep(0.5)")
        harness.enqueue("a")
        wait_for(lambda: harness.broker.arrived, timeout=5)


def test_a_retry_is_not_left_to_the_fallback_poll(street: Harness) -> None:
    street.enqueue("a", key="k")
    street.broker.answers["a"] = [Retry("no luck")]

    started = time.monotonic()
    street.work_to_the_end()

    assert time.monotonic() - started < FALLBACK / 2


def test_a_stop_is_heard_in_the_deepest_sleep(street: Harness) -> None:
    started = time.monotonic()
    with street.working() as lane:
        wait_for(lambda: lane.sessions and lane.sessions[0].next_poll() > time.monotonic() + FALLBACK / 2)
    assert time.monotonic() - started < FALLBACK / 2


def test_a_lane_kept_awake_by_writers_leaves_them_more_and_more_time(harness: Harness) -> None:
    class_ = lock_class("bell", TableName("openoutbox_events", "public"))
    with harness.database.connect() as conn, psycopg.connect(harness.database.url) as writer:
        bell = Doorbell(conn, class_, lane=0, interval=FALLBACK)
        writer.execute("SELECT pg_advisory_xact_lock_shared(%s, 0)", [class_])
        bell.after_empty_poll()
        waits = [0.001]
        while waits[-1] < QUICK:
            waits.append(min(waits[-1] * 2, QUICK))
            before = time.monotonic()
            bell.after_batch(more=False)
            assert bell.next_poll >= before + waits[-1], waits
        bell.after_batch(more=True)
        assert bell.next_poll == 0.0, "a backlog waits for nothing"
        writer.commit()
        bell.after_empty_poll()
        assert bell.next_poll == 0.0, "it fell asleep, and looks once more"
        bell.after_empty_poll()
        assert bell.next_poll > time.monotonic() + FALLBACK / 2
        bell.release()
        bell.after_batch(more=False)
        assert bell.next_poll < time.monotonic() + QUICK / 2, "it begins with the shortest wait again"
