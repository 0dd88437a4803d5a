"""Where a claim may begin to look, so that a long drain does not step over the index entries of all it has done.

Nothing below the mark may still come to be claimed in order. So a mark is set only by a look from the very
beginning that came *after* the end of every transaction that was open at an earlier moment T: whatever was written
below `min(first event found, T)` by then is visible to that look, and whoever began later writes a later time. Looks
from the mark raise it in the same way.
It lasts a second, or longer where a look from the beginning is dear, because it steps over all that waits for a
destination that is down. A key set free or a scheduled event falling due end it. So does a look that comes back less
than full, because the drain is over; where looks are dear, the mark stays even then, and idle lanes look on from it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from outspark.event import Event
from outspark.relay.source import Source

BEGINNING = datetime(1, 1, 1)
LASTS, LASTS_AT_MOST = 1.0, 10.0
WORTH = 40
"""A mark lasts so many times as long as the look that set it, within these bounds."""
DEAR = 0.05
"""Seconds that a look from the beginning may take before it is worth a mark while nothing is to be drained."""

OPEN_TRANSACTIONS = """\
-- The time, and every transaction of others that is open in this database, prepared ones included
SELECT clock_timestamp(), array(
  SELECT l.virtualtransaction FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
  WHERE l.locktype IN ('virtualxid', 'transactionid') AND l.granted
    AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND (a.pid IS NULL OR a.datname IS NULL OR a.datname = current_database()))"""


@dataclass(slots=True)
class LowWater:
    """Asked before each look of an ordered drain, told after it."""

    source: Source
    wait_for_open: bool = True
    _mark: datetime | None = None
    _expires: float = 0.0
    _freed: int = 0
    _draining: bool = False
    _dear: bool = False
    """Was the last look from the beginning dear?"""
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

    def begin(self) -> datetime:
        """From where to look now."""
        if not self.source.statements.low_water:
            return BEGINNING
        if self._freed != self.source.keys.freed:
            self._mark = None
        self._began = now = time.monotonic()
        if self._mark is not None and now < self._expires:
            self._from_beginning = False
            return self._mark
        self._mark, self._from_beginning = None, True
        self._freed = self.source.keys.freed
        if self._draining and now >= self._next_check:
            self._check(now)
        return BEGINNING

    def looked(self, events: Sequence[Event], limit: int) -> None:
        full = len(events) == limit
        self.saw_the_end = not full and (self._from_beginning or self._dear)
        if not self.source.statements.low_water:
            return
        took = time.monotonic() - self._began
        if self._from_beginning:
            # Where lanes compete, what another one gives back has to be found soon.
            self._dear = took >= DEAR and self.source.settings.ordering == "key"
        self._draining = full or self._dear
        if not self._draining:
            self._mark, self._asked, self._calm_since = None, None, None
        elif self._calm_since is not None:
            # A look from the mark may raise it: whatever lies below this time was visible to that look too.
            self._mark = min(events[0].created_at, self._calm_since) if events else self._calm_since
            if self._from_beginning:
                self._expires = time.monotonic() + self._lasts(took)

    def passed(self, last: datetime) -> None:
        """All that the last look found is through, up to its last event: the next look may begin there."""
        if self._mark is not None and self._calm_since is not None:
            self._mark = max(self._mark, min(last, self._calm_since))

    def expires_in(self) -> float:
        """Seconds until the next look from the beginning."""
        return max(self._expires - time.monotonic(), 0.0) if self._mark is not None else 0.0

    def _check(self, now: float) -> None:
        """Have all the transactions ended that were open when we asked last?"""
        ((at, open_now),) = self.source.execute("low water", OPEN_TRANSACTIONS, {})
        self._calm_since = None
        if self._asked is None or self._open.isdisjoint(open_now) or not self.wait_for_open:
            self._calm_since, self._asked, self._open = self._asked, at, frozenset(open_now)
        else:
            self._next_check = now + LASTS

    def _lasts(self, took: float) -> float:
        longest = min(max(LASTS, WORTH * took), LASTS_AT_MOST) if self._dear else LASTS
        ((due,),) = self.source.execute("low water", self.source.statements.next_due, {})
        return longest if due is None else max(min(longest, due), 0.0)
