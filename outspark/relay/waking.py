"""When a lane polls a source again: immediately while there is work, then ever more rarely, or when the bell rings."""

from __future__ import annotations

import time
from dataclasses import dataclass

from outspark.database.session import Connection

QUICK, PATIENCE, GROWTH = 0.020, 50, 1.3
"""Poll every 20 ms for 50 polls (a second), then each wait is 1.3 times the one before, up to the poll interval."""
SHORTEST = 0.001
"""The first wait of a lane with a doorbell that cannot fall asleep; each is twice the one before, up to 20 ms."""

FALL_ASLEEP = """\
-- Say that this lane is asleep, unless a writer is in the middle of an insert
SELECT pg_try_advisory_lock(%(class)s::int, %(lane)s::int)"""

STAY_AWAKE = """\
-- Say that this lane is awake again
SELECT pg_advisory_unlock(%(class)s::int, %(lane)s::int)"""


@dataclass(slots=True)
class Polling:
    """Adaptive polling of one source."""

    interval: float
    next_poll: float = 0.0
    _empty: int = 0
    _wait: float = QUICK
    _polled: float = 0.0

    def after_batch(self, more: bool) -> None:
        self._empty, self._wait, self.next_poll = 0, QUICK, 0.0

    def after_empty_poll(self) -> None:
        self._empty += 1
        if self._empty > PATIENCE:
            self._wait = min(self._wait * GROWTH, self.interval)
        wait = min(self._wait, self.interval)
        # The wait counts from poll to poll, however long a poll takes; but a slow database gets half of it as a rest.
        self.next_poll = max(self._polled + wait, time.monotonic() + wait / 2)

    def before_poll(self) -> None:
        self._polled = time.monotonic()

    def ring(self) -> None:
        self.next_poll = 0.0

    def release(self) -> None:
        """Polling holds nothing."""


@dataclass(slots=True)
class Doorbell:
    """Sleep under the lock `(class, lane)`; a writer that finds it taken sends a NOTIFY.

    No row is missed: a writer whose try succeeded holds the shared lock until its commit is visible, so a lane that
    falls asleep later sees the row in the poll that it makes *after* it got the lock; a writer whose try failed has a
    NOTIFY queued with its commit.
    """

    conn: Connection
    lock_class: int
    lane: int
    interval: float
    channel: str = ""
    """Where writers ring."""
    poll_again: bool = True
    next_poll: float = 0.0
    rings: int = 0
    _asleep: bool = False
    _polled: bool = False
    _rung: bool = False
    _busy: int = 0
    _wait: float = SHORTEST

    def before_poll(self) -> None:
        # A ring that arrives during a poll may be for a row that this poll cannot see.
        self._rung = False

    def after_batch(self, more: bool) -> None:
        """`more`: the claim may have left rows behind. If not, every later writer has sent a NOTIFY.

        A lane that is awake leaves writers time between polls: what it takes from the machine, it takes from them.
        """
        if self._asleep and not (more or self._rung):
            self._busy, self.next_poll = 0, time.monotonic() + self.interval
            return
        self._busy += 1
        if self._asleep and self._busy >= 2:
            self.release()
        if more or self._asleep:
            self.next_poll = 0.0
        else:
            self._pause()

    def after_empty_poll(self) -> None:
        self._busy = 0
        if not self._asleep:
            self._asleep = self._try()
            self._polled = not self.poll_again
            if not self._asleep:
                self._pause()
                return
            self._wait = SHORTEST
        if self._rung or not self._polled:
            self._polled, self.next_poll = True, 0.0
            return
        self.next_poll = time.monotonic() + self.interval

    def ring(self) -> None:
        self.rings += 1
        self._rung, self.next_poll = True, 0.0

    def release(self) -> None:
        if self._asleep:
            self.conn.execute(STAY_AWAKE, {"class": self.lock_class, "lane": self.lane})
            self._asleep = False

    def _pause(self) -> None:
        self.next_poll = time.monotonic() + self._wait
        self._wait = min(self._wait * 2, QUICK)

    def _try(self) -> bool:
        row = self.conn.execute(FALL_ASLEEP, {"class": self.lock_class, "lane": self.lane}).fetchone()
        return row is not None and bool(row[0])
