"""Checks from the driver that due events of a source are delivered, independently of what the lanes report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg

from outspark import contracts
from outspark.config.settings import SourceSettings
from outspark.database import slots as slot_statements
from outspark.database.names import TableName, lock_class
from outspark.hosting.spec import baton_class
from outspark.spark.deadlines import START, Deadlines

SILENT = """\
-- Lanes that hold their baton and have sent no query for long, or wait for a lock of another session
SELECT l.pid, l.objid::int, extract(epoch FROM clock_timestamp() - s.state_change)::float8,
  split_part(ltrim(s.query, E'- \n'), E'\n', 1), s.wait_event_type = 'Lock' AND s.state = 'active'
FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity s ON s.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
  AND l.classid = (%(class)s::bigint & 4294967295)::oid
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
  AND s.state_change < clock_timestamp() - %(seconds)s * interval '1 second'
ORDER BY l.objid"""

LOCK_TIMEOUT = """\
-- Limit the wait for a table that another session has locked as a whole
SELECT set_config('lock_timeout', %(milliseconds)s::text, false)"""

COST_FACTOR = 10
"""A check that took `t` seconds is followed by a pause of 10 `t`, so a large table is not read all the time."""


@dataclass(frozen=True, slots=True)
class _Head:
    """The next event to deliver: since when it is the next, and since when no event was seen in flight."""

    id: str
    since: float
    idle_since: float | None
    settled: float


@dataclass(slots=True)
class Progress:
    """The progress of one source. For one thread."""

    source: SourceSettings
    instance: str
    deadlines: Deadlines
    _started: float = field(default_factory=time.monotonic)
    _begun: bool = False
    """Has a lane of this run owned slots of the source yet?"""
    _free: dict[int, float] = field(default_factory=dict)
    """Slots without an owner while events are due -> since when."""
    _head: _Head | None = None
    _next: float = 0.0
    _problems: list[str] = field(default_factory=list)

    def forget(self) -> None:
        """Restart all deadlines: events wait for a problem that another check reports."""
        self._free.clear()
        self._head = None
        self._problems = []

    def problems(self, conn: psycopg.Connection[Any], table: TableName, settled: float) -> list[str]:
        """Why the source is not ready. `settled` counts the events that the lanes of this run reported as settled."""
        now = time.monotonic()
        if now >= self._next:
            # A table that is locked as a whole, by ALTER TABLE or VACUUM FULL, must not hang the readiness check.
            conn.execute(LOCK_TIMEOUT, {"milliseconds": round(500 * self.deadlines.interval)})
            try:
                self._problems = list(self._inspect(conn, table, settled, now))
            except psycopg.errors.LockNotAvailable:
                self._problems = ["its table is locked as a whole, so no lane can claim from it"]
            self._next = now + COST_FACTOR * (time.monotonic() - now)
        return self._problems

    def _inspect(
        self, conn: psycopg.Connection[Any], table: TableName, settled: float, now: float
    ) -> Iterator[str]:
        every = set(range(self.source.slots))
        oldest = contracts.get(self.source.contract).relay_statements(table, self.source, conn).oldest.text
        if self.source.ordering == "none":
            yield from self._silent_lanes(conn, None)
            yield from self._undelivered_head(self._oldest(conn, oldest, every), settled, now)
            return
        rows = conn.execute(slot_statements.HELD, {"class": lock_class("slot", table)}).fetchall()
        held = dict(rows)
        owned = self._owned_slots(conn, table) & held.keys()
        lanes = list(self._silent_lanes(conn, {held[slot] for slot in owned}))
        yield from lanes
        yield from self._unowned_slots(conn, oldest, every - held.keys(), now)
        if not lanes:
            yield from self._undelivered_head(self._oldest(conn, oldest, owned), settled, now)

    def _silent_lanes(self, conn: psycopg.Connection[Any], working: set[int] | None) -> Iterator[str]:
        """Lanes of this run that send no queries.

        With `working` only these sessions count: a lane that waits out the grace of a crashed owner is idle on purpose.
        """
        interval, longest = self.deadlines.interval, self.deadlines.silent
        parameters = {"class": baton_class(self.instance), "seconds": interval}
        for pid, lane, seconds, last, blocked in conn.execute(SILENT, parameters):
            if working is not None and pid not in working:
                continue
            if blocked:
                yield f"lane {lane} has waited for a lock for {seconds:.0f} s, in: {last}"
            elif seconds >= longest:
                yield f"lane {lane} has sent no query for {seconds:.0f} s, after: {last}"

    def _unowned_slots(
        self, conn: psycopg.Connection[Any], oldest: str, free: set[int], now: float
    ) -> Iterator[str]:
        """Slots without an owner, whose events no lane can claim. Slots of other relays are theirs to report."""
        head = self._oldest(conn, oldest, free)
        if head is None or not (self._begun or now - self._started >= START):
            self._free.clear()
            return
        self._free = {slot: self._free.get(slot, now) for slot in free}
        long = [
            slot
            for slot, since in self._free.items()
            if now - since >= self.deadlines.without_owner(self.source)
        ]
        if long and (longest := self._oldest(conn, oldest, set(long))) is not None:
            which = ", ".join(map(str, sorted(long)))
            whole = len(long) == self.source.slots
            what = "a slot of it" if whole else f"its slots {which}"
            yield f"no lane owns {what}, and an event has been due for {longest[1]:.0f} s"

    def _undelivered_head(
        self, found: tuple[str, float, bool] | None, settled: float, now: float
    ) -> Iterator[str]:
        """Where lanes deliver, the next event is a different one after each batch."""
        if found is None:
            self._head = None
            return
        id, seconds, in_flight = found
        head = self._head
        unknown = not contracts.get(self.source.contract).shows_backoff
        if head is None or head.id != id or (unknown and settled != head.settled):
            head = _Head(id, now, now, settled)
        # Under `lease = "row"` the rows of a batch stay locked while it is published, so "in flight" can be seen.
        idle = self.source.lease == "row" and not in_flight
        idle_since = (head.idle_since or now) if idle else None
        self._head = head = _Head(id, head.since, idle_since, head.settled)
        limit = (
            self.deadlines.undelivered_without_schedule(self.source)
            if unknown
            else self.deadlines.undelivered(self.source)
        )
        resting = idle_since is not None and now - idle_since >= self.deadlines.unclaimed(self.source)
        if resting or now - head.since >= limit:
            yield f"its lanes deliver nothing, and an event has been due for {seconds:.0f} s"

    def _owned_slots(self, conn: psycopg.Connection[Any], table: TableName) -> set[int]:
        """The slots that this run works on; none while the slots table does not exist yet."""
        name = slot_statements.slots_table(table).identifier.as_string(conn)
        row = conn.execute(slot_statements.EXISTS, {"name": name}).fetchone()
        if row is None or not row[0]:
            return set()
        statement = slot_statements.compose(slot_statements.OURS, table).encode()
        parameters = {"source": str(table), "instance": f"instance={self.instance}"}
        rows = conn.execute(statement, parameters).fetchall()
        self._begun = self._begun or bool(rows)
        return {slot for slot, clean in rows if not clean}

    def _oldest(
        self, conn: psycopg.Connection[Any], statement: str, slots: set[int]
    ) -> tuple[str, float, bool] | None:
        if not slots:
            return None
        parameters = {"slots": sorted(slots), "park": self.source.on_dead == "park"}
        found: tuple[str, float, bool] | None = conn.execute(statement.encode(), parameters).fetchone()
        return found
