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
-- Which slots have an owner now, and since which epoch
SELECT slot, epoch, owner FROM {slots_table} WHERE source = %(source)s AND NOT clean"""

_TRIES = 200
_LOOKS = 4
_PAUSE = 0.01


@dataclass(frozen=True, slots=True)
class Slot:
    number: int
    epoch: int
    owner: Owner


@dataclass(frozen=True, slots=True)
class Kill:
    lane: int
    pid: int
    in_flight: int
    """Events that the lane had claimed and not settled."""
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
        owners = [(number, epoch, Owner.parse(text)) for number, epoch, text in rows]
        return [Slot(number, epoch, owner) for number, epoch, owner in owners if owner is not None]

    def kill(self) -> Kill | None:
        """SIGKILL to a process that hosts a lane, in the middle of a batch; None when there was no lane.

        The process is stopped first, and goes on when it has nothing in flight: between two batches it would be
        too easy. Only a relay that is never caught at work is killed between two.
        """
        for tries_left in reversed(range(_TRIES)):
            kill = self._try_kill(idle_too=tries_left == 0)
            if kill is not None:
                return kill
            time.sleep(random.uniform(0, 2 * _PAUSE))
        return None

    def back(self, kill: Kill) -> Owner | None:
        """Who hosts the killed lane now; None until each of its slots has a new owner."""
        now = {slot.number: slot for slot in self.slots()}
        taken = [now[old.number] for old in kill.slots if old.number in now]
        if len(taken) < len(kill.slots) or any(
            new.epoch <= old.epoch for new, old in zip(taken, kill.slots, strict=True)
        ):
            return None
        return taken[0].owner

    def _try_kill(self, *, idle_too: bool) -> Kill | None:
        owned = self.slots()
        if not owned:
            return None
        victim = random.choice(owned).owner
        with contextlib.suppress(ProcessLookupError), _stopped(victim.pid):
            # A hand-over may have taken place since the first look.
            slots = tuple(slot for slot in self.slots() if slot.owner == victim)
            in_flight = self._in_flight() if slots else 0
            if slots and (in_flight or idle_too):
                os.kill(victim.pid, signal.SIGKILL)
                return Kill(victim.lane, victim.pid, in_flight, slots, time.monotonic())
        return None

    def _in_flight(self) -> int:
        """What stays claimed while the other lanes go on claiming and settling is the stopped one's."""
        looks = []
        for _ in range(_LOOKS):
            looks.append(self.maintenance.stats().delivering)
            time.sleep(_PAUSE)
        return min(looks)


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
