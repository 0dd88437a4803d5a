"""Where a claim may begin to look, so that a long drain does not step over the index entries of all it has done.

Nothing below the mark may still come to be claimed in order. So a mark is set only by a look from the very
beginning that came *after* the end of every transaction that was open at an earlier moment T: whatever was written
below `min(first event found, T)` by then is visible to that look, and whoever began later writes a later time. Looks
from the mark raise it in the same way.
How long it lasts is a matter of cost: an event that somebody wrote with an old time is found by the next look from the
beginning, and that steps over all that waits for a destination that is down. A lane with a backlog gives a hundredth of
its time to such looks, an idle one a twentieth. A key set free or a scheduled event falling due end the mark. So does a
look that comes back less than full, because the drain is over; where looks are dear, it stays even then, and idle lanes
look on from it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf

from outspark.event import Event
from outspark.relay.handover import LowWaterMark
from outspark.relay.source import Source

BEGINNING = datetime(1, 1, 1)
BUSY, IDLE = (100.0, 10.0, 30.0), (20.0, 1.0, 5.0)
"""A mark lasts so many times as long as the look that set it, but at least and at most so many seconds."""
CHECK_INTERVAL, FIRST_CHECK = 1.0, 0.1
"""Seconds between two questions which transactions are open; the shorter one until there was a first calm."""
MARGIN = 0.1
"""Seconds that a transaction may need from taking its time to showing among the open ones."""
DEAR = 0.05
"""Seconds that a look from the beginning may take before it is worth a mark while nothing is to be drained."""

OPEN_TRANSACTIONS = """\
-- A time, and every transaction of others that is open in this database and may write, prepared ones included. One that
-- begins takes its time first and shows a moment later, which is longer where its process has to wait for a processor.
SELECT clock_timestamp() - make_interval(secs => %(margin)s), array(
  SELECT l.virtualtransaction FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
  WHERE l.locktype IN ('virtualxid', 'transactionid') AND l.granted
    AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND (a.pid IS NULL OR a.datname IS NULL OR a.datname = current_database())
    AND a.backend_type IS DISTINCT FROM 'autovacuum worker')"""


@dataclass(slots=True)
class LowWater:
    """Asked before each look of an ordered drain, told after it."""

    source: Source
    wait_for_open: bool = True
    margin: float = MARGIN
    _mark: datetime | None = None
    _swept: datetime | None = None
    """Up to here the index entries of what is done were stepped over once more."""
    _set: float = 0.0
    """When the last look from the beginning ended, how long it took, and when the next scheduled event is due."""
    _took: float = 0.0
    _due: float = inf
    _version: int = 0
    _draining: bool = False
    _full: bool = False
    _from_beginning: bool = True
    saw_the_end: bool = False
    """Is there nothing more to be found, for now?"""
    _asked: datetime | None = None
    """When we last asked which transactions are open; `_open` was the answer."""
    _open: frozenset[str] = frozenset()
    _calm_since: datetime | None = None
    """All that was written below this time is visible to the look that comes now."""
    _next_check: float = 0.0
    _began: float = 0.0

    def prepare(self) -> None:
        """Ask early which transactions are open, so that the very first look of a drain can set a mark."""
        if self.source.statements.low_water:
            self._check(time.monotonic())

    def begin(self) -> datetime:
        """From where to look now."""
        if not self.source.statements.low_water:
            return BEGINNING
        if self._version != self.source.keys.version:
            self._mark = None
        now = time.monotonic()
        worth_a_mark = self._draining or self._asked is not None
        checks = worth_a_mark and now >= self._next_check
        if checks:
            self._check(now)
        self._from_beginning = self._mark is None or now >= self._expires()
        if self._from_beginning:
            self._mark, self._due, self._version = None, inf, self.source.keys.version
        if checks or (self._from_beginning and worth_a_mark):
            # Before the look: what falls due until then is found by it, what falls due later ends the mark.
            self._due = min(self._due, self._next_due())
        self._began = time.monotonic()
        if self._mark is None:
            return BEGINNING
        # A sweep would read all that waits for a destination that is down and that the last second passed over.
        sweeps = checks and not self.source.keys.awaited()
        return self._sweep(self._mark) if sweeps else self._mark

    def looked(self, events: Sequence[Event], *, full: bool) -> None:
        """`full`: the look brought as much as it may, so that there may be more."""
        self._full = full
        if not self.source.statements.low_water:
            self.saw_the_end = not full
            return
        if self._from_beginning:
            self._set = time.monotonic()
            self._took = self._set - self._began
        self.saw_the_end = not full and (self._from_beginning or self._is_dear())
        self._draining = full or self._is_dear()
        if not self._draining:
            self._mark, self._asked, self._calm_since = None, None, None
        elif self._calm_since is not None:
            # A look from the mark may raise it: whatever lies below this time was visible to that look too.
            self._mark = min(events[0].created_at, self._calm_since) if events else self._calm_since
            if self._from_beginning:
                self._swept = self._mark

    def passed(self, last: datetime) -> None:
        """All that the last look found is through, up to its last event: the next look may begin there."""
        if self._mark is not None and self._calm_since is not None:
            self._mark = max(self._mark, min(last, self._calm_since))

    def note(self) -> LowWaterMark | None:
        """The mark, for the shift that comes after this one."""
        if self._mark is None or self._calm_since is None or self._version != self.source.keys.version:
            return None
        now = time.monotonic()
        return LowWaterMark(
            at=self._mark,
            calm_since=self._calm_since,
            age=now - self._set,
            took=self._took,
            due=self._due - now if self._due < inf else None,
            full=self._full,
        )

    def resume(self, mark: LowWaterMark, ago: float) -> None:
        """Go on where the shift before us stopped so many seconds ago."""
        now = time.monotonic()
        self._mark, self._swept, self._calm_since = mark.at, mark.at, mark.calm_since
        self._set, self._took = now - ago - mark.age, mark.took
        self._due = now - ago + mark.due if mark.due is not None else inf
        self._draining, self._full, self._version = True, mark.full, self.source.keys.version

    def expires_in(self) -> float:
        """Seconds until the next look from the beginning."""
        return max(self._expires() - time.monotonic(), 0.0) if self._mark is not None else 0.0

    def _check(self, now: float) -> None:
        """Have all the transactions ended that were open when we asked last?"""
        ((at, open_now),) = self.source.execute("low water", OPEN_TRANSACTIONS, {"margin": self.margin})
        if self._asked is None:
            self._asked, self._open, self._next_check = at, frozenset(open_now), now
            return
        if self._open.isdisjoint(open_now) or not self.wait_for_open:
            self._calm_since, self._asked, self._open = self._asked, at, frozenset(open_now)
        self._next_check = now + (FIRST_CHECK if self._calm_since is None else CHECK_INTERVAL)

    def _sweep(self, mark: datetime) -> datetime:
        """Once a second a look begins where the mark was a second ago, and steps over what was done since then.

        The server marks the index entries that it finds dead by then, and later looks pass them by without reading
        their rows. Here the rows are still in memory; a look from the beginning would fetch each from the disk.
        """
        begin, self._swept = min(self._swept or mark, mark), mark
        return begin

    def _next_due(self) -> float:
        ((seconds,),) = self.source.execute("low water", self.source.statements.next_due, {})
        return time.monotonic() + seconds if seconds is not None else inf

    def _is_dear(self) -> bool:
        return self._took >= DEAR and self._may_last()

    def _may_last(self) -> bool:
        """Where lanes compete, what another one gives back has to be found soon."""
        return self.source.settings.ordering == "key"

    def _expires(self) -> float:
        worth, at_least, at_most = BUSY if self._full and self._may_last() else IDLE
        lasts = min(max(worth * self._took, at_least), at_most if self._may_last() else at_least)
        return min(self._set + lasts, self._due)
