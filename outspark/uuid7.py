"""Time-ordered ids (RFC 9562, version 7) that increase within a process, also inside one millisecond.

48 bits milliseconds │ version 7 │ 12 bits counter, high │ variant │ 30 bits counter, low │ 32 bits random
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from uuid import UUID

_COUNTER_BITS = 42
_AHEAD = 256
_VERSION_AND_VARIANT = 7 << 76 | 0b10 << 62


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000


class Uuid7:
    """Generates ids, each greater than the one before, even when the clock stands still or goes back."""

    def __init__(self, clock: Callable[[], int] = _milliseconds) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._time = -1
        self._counter = 0
        self._random: list[int] = []
        """Random words drawn in advance: one system call per id would cost more than all the rest."""

    def __call__(self) -> UUID:
        with self._lock:
            self._advance(self._clock())
            time, counter = self._time, self._counter
            if not self._random:
                self._random.extend(memoryview(os.urandom(_AHEAD * 4)).cast("I"))
            random = self._random.pop()
        high, low = divmod(counter, 1 << 30)
        return UUID(int=time << 80 | _VERSION_AND_VARIANT | high << 64 | low << 32 | random)

    def _advance(self, now: int) -> None:
        if now > self._time:
            self._restart(now)
        elif self._counter + 1 < 1 << _COUNTER_BITS:
            self._counter += 1
        else:
            self._restart(self._time + 1)

    def _restart(self, time: int) -> None:
        # The counter starts below its top bit, so a millisecond has room for at least 2 x 10^12 more ids.
        self._time, self._counter = time, secrets.randbits(_COUNTER_BITS - 1)


_source = Uuid7()


def uuid7() -> UUID:
    return _source()


def _renew() -> None:
    global _source
    _source = Uuid7()


# A forked child would repeat its parent's ids, and deadlock if another thread held the lock at the fork.
os.register_at_fork(after_in_child=_renew)
