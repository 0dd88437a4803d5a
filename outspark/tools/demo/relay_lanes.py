"""Which process hosts which lane of the relay, by the relay's `outspark_slots`, and the kill of one of them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from functools import partial

import psycopg

from outspark.database import slots
from outspark.database.names import TableName
from outspark.database.slots import Owner
from outspark.maintenance.operations import Maintenance
from outspark.tools.demo.crash import PAUSE, Kill, catch, stopped

OWNERS = """\
-- The current owner of each slot, the latest to come first
SELECT slot, owner FROM {slots_table} WHERE source = %(source)s AND NOT clean ORDER BY since DESC"""

_SCANS = 4


@dataclass(frozen=True, slots=True)
class Slot:
    number: int
    owner: Owner


@dataclass(frozen=True, slots=True)
class Lanes:
    """Uses a connection of its own; not to be shared between threads."""

    conn: psycopg.Connection
    table: TableName
    maintenance: Maintenance

    def slots(self) -> list[Slot]:
        exists = self.conn.execute(
            slots.EXISTS, {"name": slots.slots_table(self.table).identifier.as_string(None)}
        ).fetchone()
        if exists is None or not exists[0]:
            return []
        statement = slots.compose(OWNERS, self.table)
        rows = self.conn.execute(statement.encode(), {"source": str(self.table)}).fetchall()
        owners = [(number, Owner.parse(text)) for number, text in rows]
        return [Slot(number, owner) for number, owner in owners if owner is not None]

    def kill(self) -> Kill | None:
        """Kills the lane that took over last, so that its relief is not waiting already."""
        return catch(self._try_kill)

    def _try_kill(self, idle_too: bool) -> Kill | None:
        owned = self.slots()
        if not owned:
            return None
        victim = owned[0].owner
        with contextlib.suppress(ProcessLookupError), stopped(victim.pid):
            # A hand-over may have taken place since the first scan.
            held = tuple(slot.number for slot in self.slots() if slot.owner == victim)
            mid_batch = bool(held) and self._holds_claims()
            if held and (mid_batch or idle_too):
                os.kill(victim.pid, signal.SIGKILL)
                back = partial(self._back, victim.pid, held)
                return Kill(f"lane {victim.lane}", victim.pid, mid_batch, time.monotonic(), back)
        return None

    def _back(self, pid: int, held: tuple[int, ...]) -> int | None:
        """Another process owns each of the slots."""
        now = {slot.number: slot.owner.pid for slot in self.slots()}
        owners = [now.get(number) for number in held]
        return None if any(owner is None or owner == pid for owner in owners) else owners[0]

    def _holds_claims(self) -> bool:
        """What stays claimed while the other lanes go on claiming and settling is the stopped one's."""
        for _ in range(_SCANS):
            if not self.maintenance.stats().delivering:
                return False
            time.sleep(PAUSE)
        return True
