"""When a lane looks again."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from outspark.relay import waking
from outspark.relay.waking import PATIENCE, QUICK, Polling


@dataclass
class Clock:
    now: float = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(waking, "time", clock)
    return clock


def _look(polling: Polling, clock: Clock, takes: float) -> float:
    """How long after the beginning of an empty look the next one is due."""
    began = clock.now
    polling.before_poll()
    clock.now += takes
    polling.after_empty_poll()
    return polling.next_poll - began


def test_looks_are_a_fixed_time_apart_whatever_they_take(clock: Clock) -> None:
    polling = Polling(0.5)
    assert _look(polling, clock, takes=0.001) == pytest.approx(QUICK)
    assert _look(polling, clock, takes=0.008) == pytest.approx(QUICK)


def test_a_slow_database_is_left_alone_for_a_while(clock: Clock) -> None:
    assert _look(Polling(0.5), clock, takes=0.3) == pytest.approx(0.3 + QUICK / 2)


def test_who_finds_nothing_for_a_second_looks_ever_more_rarely(clock: Clock) -> None:
    polling = Polling(0.5)
    waits = [_look(polling, clock, takes=0.001) for _ in range(PATIENCE + 30)]
    assert waits[:PATIENCE] == pytest.approx([QUICK] * PATIENCE)
    assert waits[PATIENCE:] == sorted(waits[PATIENCE:])
    assert waits[-1] == pytest.approx(0.5)
    polling.after_batch(more=True)
    assert polling.next_poll == 0.0
    assert _look(polling, clock, takes=0.001) == pytest.approx(QUICK)
