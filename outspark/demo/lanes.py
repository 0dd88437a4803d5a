"""Who hosts which lane, by the relay's own `outspark_slots`, and the kill of one of them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg

from outspark.contracts import slots
from outspark.contracts.names import TableName
from outspark.maintenance import Maintenance
from outspark.relay.owner import Owner

OWNERS = """\
-- Who works on which slot now, the latest to come first
SELECT slot, owner FROM {slots_table} WHERE source = %(source)s AND NOT clean ORDER BY since DESC"""

_TRIES = 200
_LOOKS = 4
_PAUSE = 0.01


@dataclass(frozen=True, slots=True)
class Slot:
    number: int
    owner: Owner


@dataclass(frozen=True, slots=True)
class Kill:
    lane: int
    pid: int
    mid_batch: bool
    """The lane had claimed events and not settled them."""
    slots: tuple[Slot, ...]
    at: float
    """By `time.monotonic`."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Looks through a connection of its own; not to be shared between threads."""

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
        """SIGKILL to a process that hosts a lane, in the middle of a batch; None when there was no lane.

        Nothing is made easy. It is the lane that took over last, so that its relief is not waiting already. The
        process is stopped first, and goes on if it has no claim in its hands; only one that is never caught with
        a claim is killed without.
        """
        for tries_left in reversed(range(_TRIES)):
            kill = self._try_kill(idle_too=tries_left == 0)
            if kill is not None:
                return kill
            time.sleep(random.uniform(0, 2 * _PAUSE))
        return None

    def back(self, kill: Kill) -> Owner | None:
        """Who hosts the killed lane now; None until somebody else has put its name on each of its slots."""
        now = {slot.number: slot.owner for slot in self.slots()}
        owners = [now.get(slot.number) for slot in kill.slots]
        return None if any(owner is None or owner.pid == kill.pid for owner in owners) else owners[0]

    def _try_kill(self, *, idle_too: bool) -> Kill | None:
        owned = self.slots()
        if not owned:
            return None
        victim = owned[0].owner
        with contextlib.suppress(ProcessLookupError), _stopped(victim.pid):
            # A hand-over may have taken place since the first look.
            slots = tuple(slot for slot in self.slots() if slot.owner == victim)
            mid_batch = bool(slots) and self._holds_claims()
            if slots and (mid_batch or idle_too):
                os.kill(victim.pid, signal.SIGKILL)
                return Kill(victim.lane, victim.pid, mid_batch, slots, time.monotonic())
        return None

    def _holds_claims(self) -> bool:
        """What stays claimed while the other lanes go on claiming and settling is the stopped one's."""
        for _ in range(_LOOKS):
            if not self.maintenance.stats().delivering:
                return False
            time.sleep(_PAUSE)
        return True


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
