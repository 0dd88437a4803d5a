"""Do the events of a source that are due get anywhere? The driver looks from outside, whatever the lanes say."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import psycopg

from outspark import contracts
from outspark.contracts.names import TableName, lock_class
from outspark.contracts.upkeep import Stats
from outspark.relay.lane import LEAD
from outspark.settings import Settings, SourceSettings

HELD = """\
-- How many slots of this outbox somebody owns, here or elsewhere
SELECT count(*) FROM pg_catalog.pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = (%(class)s::bigint & 4294967295)::oid
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""

INTERVALS = 3
"""Looks without progress until it is told."""
REST = 20
"""How many times as long as a look took the next one is put off, so that a large table is not read all the time."""
MOVED = 0.5
"""Seconds that the oldest due event has to be younger to count as another one."""


@dataclass(slots=True)
class _Seen:
    """The last look that found progress. `oldest` is when the oldest due event became so, on the monotonic clock."""

    at: float
    oldest: float
    pending: int
    settled: float


@dataclass(slots=True)
class Progress:
    settings: Settings
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _next: dict[str, float] = field(default_factory=dict)
    _told: dict[str, str] = field(default_factory=dict)

    def forget(self) -> None:
        """Events wait for a reason that is told already; they have all their time again afterwards."""
        self._seen.clear()
        self._told.clear()

    def problem(
        self,
        conn: psycopg.Connection[Any],
        name: str,
        source: SourceSettings,
        table: TableName,
        owned: int,
        settled: float,
    ) -> str:
        """Why it is not ready, or nothing. `owned` slots are this run's, and so are `settled` events so far."""
        now = time.monotonic()
        if now < self._next.get(name, 0.0):
            return self._told.get(name, "")
        try:
            stats = contracts.get(source.contract).upkeep(table).stats(conn, exact=False)
        except psycopg.DataError:
            # A time that the driver cannot read, such as infinity: nothing can be said.
            return ""
        held = self._held(conn, table) if source.ordering == "key" else 1
        self._next[name] = now + REST * (time.monotonic() - now)
        self._told[name] = self._judge(now, name, source, stats, held, owned, settled)
        return self._told[name]

    def _judge(
        self,
        now: float,
        name: str,
        source: SourceSettings,
        stats: Stats,
        held: int,
        owned: int,
        settled: float,
    ) -> str:
        behind = stats.due_age.total_seconds() if stats.due_age is not None else 0.0
        patience = INTERVALS * self.settings.server.health_check_interval.total_seconds()
        if held:
            # Lanes tell what they settled at the end of each shift.
            patience += 2 * (self.settings.relay.shift.total_seconds() + LEAD)
        seen = self._seen.get(name)
        oldest = now - behind
        if (
            seen is None
            or behind < patience
            or settled > seen.settled
            or stats.pending < seen.pending
            or oldest > seen.oldest + MOVED
            or (held and _may_wait(source, stats, owned))
        ):
            self._seen[name] = _Seen(now, oldest, stats.pending, settled)
            return ""
        seen.pending = stats.pending
        if now - seen.at < patience:
            return ""
        who = "no lane owns a slot of it" if not held else "its lanes deliver nothing"
        return f"{who}, and an event has been due for {behind:.0f} s"

    def _held(self, conn: psycopg.Connection[Any], table: TableName) -> int:
        row = conn.execute(HELD, {"class": lock_class("slot", table)}).fetchone()
        return int(row[0]) if row else 0


def _may_wait(source: SourceSettings, stats: Stats, owned: int) -> bool:
    """Another relay may own the slots; and what is due may wait its turn behind an event of its key that failed."""
    if source.ordering == "key" and not owned:
        return True
    parked = source.on_dead == "park" and stats.dead > 0
    # A jEAP outbox does not show what has failed and is tried again.
    return stats.backoff > 0 or parked or source.contract == "jeap"
