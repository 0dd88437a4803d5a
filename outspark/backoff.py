"""The delay before a failed event is tried again."""

from __future__ import annotations

import random
from datetime import timedelta


def delay(
    failures: int,
    *,
    base: timedelta,
    cap: timedelta,
    jitter: float,
    rng: random.Random | None = None,
) -> timedelta:
    """Delay before the next try after `failures` failures: base x 2^(failures-1), capped, plus up to `jitter` of it.

    With base 1 s, cap 24 h and no jitter: 1 s after the first failure, 16 s after the fifth, 18 h 12 min after the
    seventeenth, 24 h from the eighteenth on. Jitter 0.15 makes the 16 s anything from 16 s to 18.4 s.
    """
    exponent = min(max(failures, 1) - 1, 62)
    wait = min(base.total_seconds() * 2**exponent, cap.total_seconds())
    share = (rng or random).uniform(0, jitter) if jitter else 0.0
    return timedelta(seconds=wait * (1 + share))
