"""A lane's session on one database: its connection, the loops of the sources there, the hand-over between shifts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import Notify

from outspark.database.connecting import Connecting
from outspark.database.session import Connection
from outspark.delivery.destination import Destination
from outspark.errors import OutsparkError
from outspark.hosting import control, process
from outspark.observability.causes import Trouble
from outspark.observability.metrics import DOORBELL_RINGS_TOTAL, Tally
from outspark.observability.otel import Tracing
from outspark.relay.assembly import Surroundings, build_loop
from outspark.relay.loop import SourceLoop
from outspark.relay.spec import RelayLaneSpec, SourceSlots
from outspark.relay.waking import Doorbell

log = logging.getLogger(__name__)

BATON_POLL = 0.05
QUICK_CONNECT, CONNECT_POLL = 0.05, 0.02
"""Seconds that the lane's other sessions wait for a connection; one that takes longer is polled."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


@dataclass(slots=True)
class DatabaseSession:
    """Survives the loss of its database: it closes, waits and opens again, while the lane's other sessions go on."""

    spec: RelayLaneSpec
    url: str
    sources: list[SourceSlots]
    destinations: Mapping[str, Destination]
    tally: Tally
    tracing: Tracing
    moved: Callable[[], None]
    conn: Connection | None = None
    loops: list[SourceLoop] = field(default_factory=list)
    bells: dict[str, SourceLoop] = field(default_factory=dict)
    holds_baton: bool = False
    relieved: bool = False
    stopped: bool = False
    released: bool = False
    problem: str = ""
    next_try: float = 0.0
    paused: list[dict[str, Any]] = field(default_factory=list)
    """Types of events that were paused when the slots were released."""
    trouble: Trouble = field(default_factory=Trouble)
    _pause: float = FIRST_PAUSE
    _connecting: Connecting | None = None

    def step(self) -> int:
        """One round over the sources whose poll is due; how many events were settled."""
        self.moved()
        if self.released or time.monotonic() < self.next_try:
            return 0
        try:
            if (self.conn is None and not self._connect()) or not (self.holds_baton or self._take_baton()):
                return 0
            now = time.monotonic()
            return sum(loop.step() for loop in self.loops if loop.waker.next_poll <= now)
        except (psycopg.Error, OutsparkError) as error:
            self._close(error)
            return 0

    def hear(self) -> None:
        """Read the notifications that arrived while the lane waited."""
        if self.conn is None:
            return
        try:
            self.conn.pgconn.consume_input()
            while notify := self.conn.pgconn.notifies():
                self._heard(Notify(notify.relname.decode(), notify.extra.decode(), notify.be_pid))
        except psycopg.Error as error:
            self._close(error)

    def next_poll(self) -> float:
        if self.released:
            return float("inf")
        if self.conn is None or not self.holds_baton:
            return self.next_try
        return min((loop.waker.next_poll for loop in self.loops), default=self.next_try)

    def release(self) -> None:
        """Finish in good order: leave the slots, unlock all, tell the next shift. The process keeps the connection."""
        self.released = True
        self._stop_connecting()
        if self.conn is None:
            return
        try:
            for loop in self.loops:
                loop.release()
            self.conn.execute("UNLISTEN *")
            self.conn.remove_notify_handler(self._heard)
            self.conn.execute(
                control.LET_GO, {"channel": self.spec.channel, "message": control.free(self.spec.lane)}
            )
        except (psycopg.Error, OutsparkError) as error:
            self._close(error)
        self._count_rings()
        self.paused = [
            {"source": loop.source.name, "type": name, "reason": breaker.reason, "since": breaker.since}
            for loop in self.loops
            for name, breaker in loop.dispatcher.paused.items()
        ]
        self.conn, self.loops = None, []

    def is_away(self) -> bool:
        """Is there no connection, and no attempt to connect?"""
        return self.conn is None and self._connecting is None

    def taking_over(self) -> bool:
        """A grace would begin anew in the next shift, and suspects go out with others: so this shift finishes both."""
        return any(loop.ownership is not None and loop.ownership.taking_over() for loop in self.loops)

    def abandon(self) -> None:
        """Drop the connection as it is: its locks end, and the next owner adopts what was in flight."""
        if not self.released:
            self.released = True
            self._stop_connecting()
            process.discard(self.url)
            self.conn, self.loops = None, []

    def _connect(self) -> bool:
        """Begin to connect, or check on it; True when done. The lane's other sessions are not delayed."""
        patience = 0.0
        if self._connecting is None:
            name = f"outspark {self.spec.relay.id} lane {self.spec.lane}"
            self._connecting, patience = process.connecting(self.url, name), QUICK_CONNECT
        if not self._connecting.done(patience):
            self.next_try = time.monotonic() + CONNECT_POLL
            return False
        connecting, self._connecting = self._connecting, None
        self._open(connecting.result())
        return True

    def _stop_connecting(self) -> None:
        if self._connecting is not None:
            self._connecting.abandon()
            self._connecting = None

    def _open(self, conn: Connection) -> None:
        process.keep(self.url, conn)
        self.conn = conn
        conn.add_notify_handler(self._heard)
        control.listen(conn, self.spec.channel)
        around = Surroundings(
            self.spec, conn, self.destinations, self.tally, self.tracing, self.trouble, self.moved
        )
        self.loops = [build_loop(around, assigned) for assigned in self.sources]
        for loop in self.loops:
            if isinstance(loop.waker, Doorbell):
                self.bells[loop.waker.channel] = loop
                control.listen(conn, loop.waker.channel)
            loop.warm()
        control.notify(conn, self.spec.channel, str(control.Ready(self.spec.lane, self.spec.shift)))
        if self.problem:
            self.trouble.clear()
        self.problem, self._pause = "", FIRST_PAUSE

    def _take_baton(self) -> bool:
        assert self.conn is not None
        row = self.conn.execute(control.TRY_BATON, self.spec.baton).fetchone()
        self.holds_baton = row is not None and bool(row[0])
        if not self.holds_baton:
            self.next_try = time.monotonic() + BATON_POLL
        return self.holds_baton

    def _heard(self, notify: Notify) -> None:
        if notify.channel in self.bells:
            self.bells[notify.channel].waker.ring()
        elif notify.payload == control.STOP:
            self.stopped = True
        elif notify.payload == control.free(self.spec.lane):
            self.next_try = 0.0
        elif control.is_relief(notify, self.spec.lane, self.spec.shift):
            self.relieved = True

    def _close(self, error: Exception) -> None:
        """Drop the connection and all that belonged to its session; try again after a pause."""
        self.problem = " ".join(str(error).split()) or type(error).__name__
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        refused = isinstance(error, psycopg.errors.InsufficientPrivilege)
        what = "lost the database" if lost else "not allowed" if refused else "cannot work on the sources"
        # Every lane of the relay reports this, shift after shift: the driver logs it once for all of them.
        sources = ", ".join(assigned.name for assigned in self.sources)
        self.trouble.raise_(f"{what}; trying again: {sources}", self.problem)
        self._count_rings()
        process.discard(self.url)
        self.conn, self.loops, self.bells, self.holds_baton = None, [], {}, False
        self.next_try = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE)

    def _count_rings(self) -> None:
        for loop in self.loops:
            if isinstance(loop.waker, Doorbell) and loop.waker.rings:
                self.tally.add(DOORBELL_RINGS_TOTAL, loop.waker.rings, source=loop.source.name)
