"""Backoff: the worked numbers of its docstring, its cap and its jitter."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from outspark.backoff import delay

BASE, CAP = timedelta(seconds=1), timedelta(hours=24)


@pytest.mark.parametrize(
    ("failures", "wait"),
    [
        (1, timedelta(seconds=1)),
        (2, timedelta(seconds=2)),
        (5, timedelta(seconds=16)),
        (17, timedelta(hours=18, minutes=12, seconds=16)),
        (18, timedelta(hours=24)),
        (25, timedelta(hours=24)),
        (100_000, timedelta(hours=24)),
        (0, timedelta(seconds=1)),
    ],
)
def test_it_doubles_up_to_the_cap(failures: int, wait: timedelta) -> None:
    assert delay(failures, base=BASE, cap=CAP, jitter=0) == wait


def test_jitter_only_adds_and_at_most_its_share() -> None:
    rng = random.Random(1)
    waits = [delay(5, base=BASE, cap=CAP, jitter=0.15, rng=rng).total_seconds() for _ in range(500)]

    assert min(waits) >= 16.0
    assert max(waits) <= 18.4
    assert max(waits) - min(waits) > 2
