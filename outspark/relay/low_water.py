"""Where a claim may begin its scan, so that a long drain does not step over the index entries of all it has done.

No event below the mark may still come to be claimed in order. So only a scan from the very beginning sets a mark, and
only if it came *after* the end of every transaction that was open at an earlier moment T: that scan sees every row
written below `min(first event found, T)`, and a transaction that began later writes a later time. Scans from the mark
raise it in the same way.
How long a mark lasts is a matter of cost: an event written with an old time is found by the next scan from the
beginning, and that scan steps over all events that wait for a destination that is down. A lane with a backlog spends a
hundredth of its time on such scans, an idle lane a twentieth. A freed key or a scheduled event that falls due ends the
mark. So does a claim that comes back less than full, because the drain is over; where scans from the beginning are
expensive the mark stays even then, and an idle lane scans from it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf

from outspark.contracts.relay_statements import NoParams
from outspark.event import Event
from outspark.relay.blocked_keys import AT_FIRST, Moment
from outspark.relay.handover import LowWaterMark
from outspark.relay.source import Source

BEGINNING = datetime(1, 1, 1)
BUSY, IDLE = (100.0, 10.0, 30.0), (20.0, 1.0, 5.0)
"""`(factor, min, max)`: a mark lasts `factor` x the duration of its scan, clamped to `min`..`max` seconds."""
CHECK_INTERVAL, FIRST_CHECK = 1.0, 0.1
"""Seconds between two questions which transactions are open; the shorter one until all of them ended once."""
MARGIN = 0.1
"""Seconds that a transaction may need from taking its time to showing among the open ones."""
EXPENSIVE = 0.05
"""Seconds that a scan from the beginning may take before an idle lane keeps its mark."""

OPEN_TRANSACTIONS = """\
-- A time, and every other transaction that is open in this database and may write, prepared ones included. One that
-- begins takes its time first and shows a moment later, which is longer where its process waits for a processor.
SELECT clock_timestamp() - make_interval(secs => %(margin)s), array(
  SELECT l.virtualtransaction FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
  WHERE l.locktype IN ('virtualxid', 'transactionid') AND l.granted
    AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND (a.pid IS NULL OR a.datname IS NULL OR a.datname = current_database())
    AND a.backend_type IS DISTINCT FROM 'autovacuum worker')"""


@dataclass(slots=True)
class LowWater:
    """Asked before each claim in order, told after it."""

    source: Source
    wait_for_open: bool = True
    margin: float = MARGIN
    _mark: datetime | None = None
    _swept: datetime | None = None
    """Up to here a scan stepped once more over the index entries of settled events."""
    _set: float = 0.0
    """When the last scan from the beginning ended, how long it took, and when the next scheduled event is due."""
    _took: float = 0.0
    _due: float = inf
    _moment: Moment = AT_FIRST
    """When the last scan from the beginning began, for the question whether keys were freed since."""
    _draining: bool = False
    _full: bool = False
    _from_beginning: bool = True
    saw_the_end: bool = False
    """Is there nothing more to claim, for now?"""
    _asked: datetime | None = None
    """When the lane last asked which transactions are open; `_open` was the answer."""
    _open: frozenset[str] = frozenset()
    _calm_since: datetime | None = None
    """The next scan sees all rows that were written below this time."""
    _next_check: float = 0.0
    _began: float = 0.0

    def prepare(self) -> None:
        """Ask early which transactions are open, so that the first scan of a drain can set a mark."""
        if self.source.statements.low_water:
            self._check(time.monotonic())

    def begin(self) -> datetime:
        """Where the next claim begins its scan."""
        if not self.source.statements.low_water:
            return BEGINNING
        if self.source.keys.freed_since(self._moment):
            self._mark = None
        now = time.monotonic()
        worth_a_mark = self._draining or self._asked is not None
        checks = worth_a_mark and now >= self._next_check
        if checks:
            self._check(now)
        self._from_beginning = self._mark is None or now >= self._expires()
        if self._from_beginning:
            self._mark, self._due, self._moment = None, inf, self.source.keys.now()
        if checks or (self._from_beginning and worth_a_mark):
            # Before the scan: it finds what falls due until then, and what falls due later ends the mark.
            self._due = min(self._due, self._next_due())
        self._began = time.monotonic()
        if self._mark is None:
            return BEGINNING
        # A sweep would read all events that wait for a destination that is down and that the last second left out.
        sweeps = checks and not self.source.keys.awaited()
        return self._sweep(self._mark) if sweeps else self._mark

    def claimed(self, events: Sequence[Event], *, full: bool) -> None:
        """`full`: the claim brought as much as it may, so that there may be more."""
        self._full = full
        if not self.source.statements.low_water:
            self.saw_the_end = not full
            return
        if self._from_beginning:
            self._set = time.monotonic()
            self._took = self._set - self._began
        self.saw_the_end = not full and (self._from_beginning or self._is_expensive())
        self._draining = full or self._is_expensive()
        if not self._draining:
            self._mark, self._asked, self._calm_since = None, None, None
        elif self._calm_since is not None:
            # A scan from the mark may raise it: that scan saw everything below this time, too.
            self._mark = min(events[0].created_at, self._calm_since) if events else self._calm_since
            if self._from_beginning:
                self._swept = self._mark

    def settled_up_to(self, last: datetime) -> None:
        """All that the last claim found is settled, up to its last event: the next scan may begin there."""
        if self._mark is not None and self._calm_since is not None:
            self._mark = max(self._mark, min(last, self._calm_since))

    def note(self) -> LowWaterMark | None:
        """The mark, for the shift that comes after this one."""
        if self._mark is None or self._calm_since is None or self.source.keys.freed_since(self._moment):
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
        self._draining, self._full, self._moment = True, mark.full, self.source.keys.now()

    def expires_in(self) -> float:
        """Seconds until the next scan from the beginning."""
        return max(self._expires() - time.monotonic(), 0.0) if self._mark is not None else 0.0

    def _check(self, now: float) -> None:
        """Have all transactions ended that were open when the lane asked last?"""
        ((at, open_now),) = self.source.execute("low water", OPEN_TRANSACTIONS, {"margin": self.margin})
        if self._asked is None:
            self._asked, self._open, self._next_check = at, frozenset(open_now), now
            return
        if self._open.isdisjoint(open_now) or not self.wait_for_open:
            self._calm_since, self._asked, self._open = self._asked, at, frozenset(open_now)
        self._next_check = now + (FIRST_CHECK if self._calm_since is None else CHECK_INTERVAL)

    def _sweep(self, mark: datetime) -> datetime:
        """Once a second a scan begins where the mark was a second ago, and steps over what was settled since then.

        The server marks the index entries that it finds dead by then, and later scans skip them without reading
        their rows. Here the rows are still in memory; a scan from the beginning would fetch each from the disk.
        """
        begin, self._swept = min(self._swept or mark, mark), mark
        return begin

    def _next_due(self) -> float:
        (due,) = self.source.query("low water", self.source.statements.next_due, NoParams())
        return time.monotonic() + due.seconds if due.seconds is not None else inf

    def _is_expensive(self) -> bool:
        return self._took >= EXPENSIVE and self._may_last()

    def _may_last(self) -> bool:
        """Where lanes compete, a lane has to find soon what another one gives back."""
        return self.source.settings.ordering == "key"

    def _expires(self) -> float:
        worth, at_least, at_most = BUSY if self._full and self._may_last() else IDLE
        lasts = min(max(worth * self._took, at_least), at_most if self._may_last() else at_least)
        return min(self._set + lasts, self._due)
