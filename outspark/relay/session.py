"""A lane's place at one database: its connection, the loops of the sources there, and the hand-over between shifts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg import Notify

from outspark import contracts
from outspark.config.settings import DestinationSettings
from outspark.contracts.contract import TOKEN_PREFIX
from outspark.database import doorbell
from outspark.database.check import refuse_errors
from outspark.database.connecting import Connecting
from outspark.database.deliveries import Deliveries
from outspark.database.names import TableName, bell_channel, lock_class, resolve
from outspark.database.session import Connection
from outspark.database.slots import Owner, Slots
from outspark.delivery.destination import Destination
from outspark.delivery.dispatcher import Dispatcher
from outspark.delivery.envelopes import Envelope, make_envelope
from outspark.delivery.routing import Router, load_transform
from outspark.errors import OutsparkError
from outspark.hosting import control, process
from outspark.observability.causes import Trouble
from outspark.observability.metrics import DOORBELL_RINGS_TOTAL, Tally
from outspark.observability.otel import Tracing
from outspark.relay.assembly import relay_lock
from outspark.relay.loop import SourceLoop
from outspark.relay.low_water import LowWater
from outspark.relay.ownership import SlotOwnership
from outspark.relay.settle import Settler
from outspark.relay.source import Source
from outspark.relay.spec import RelayLaneSpec, SourceSlots
from outspark.relay.waking import Doorbell, Polling

log = logging.getLogger(__name__)

BATON_POLL = 0.05
QUICK_CONNECT, CONNECT_POLL = 0.05, 0.02
"""Seconds that the lane's other sessions wait for a connection; one that takes longer is polled."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


@dataclass(slots=True)
class DatabaseSession:
    """Survives the loss of its database: it closes, waits and opens again, and the lane's other sessions go on."""

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
        """One round over the sources that want to be looked at; how many events were settled."""
        self.moved()
        if self.released or time.monotonic() < self.next_try:
            return 0
        try:
            return self._step()
        except (psycopg.Error, OutsparkError) as error:
            self._close(error)
            return 0

    def hear(self) -> None:
        """Take in what arrived on the socket while nothing was asked."""
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
        """Finish in good order: leave the slots, unlock all, tell the next shift. The connection is kept."""
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
        """Is there no connection, and none under way?"""
        return self.conn is None and self._connecting is None

    def taking_over(self) -> bool:
        """A grace would begin anew with the next shift and suspects would travel with others, so this one ends it."""
        return any(loop.ownership is not None and loop.ownership.taking_over() for loop in self.loops)

    def abandon(self) -> None:
        """Drop the connection as it is: its locks go, and what was in flight is the next owner's to adopt."""
        if not self.released:
            self.released = True
            self._stop_connecting()
            process.discard(self.url)
            self.conn, self.loops = None, []

    def _step(self) -> int:
        if self.conn is None and not self._connect():
            return 0
        if not self.holds_baton and not self._take_baton():
            return 0
        now = time.monotonic()
        return sum(self._step_of(loop) for loop in self.loops if loop.waker.next_poll <= now)

    def _step_of(self, loop: SourceLoop) -> int:
        self.moved()
        return loop.step()

    def _connect(self) -> bool:
        """Begin to connect, or see how far that is; True when done. The lane's other sessions are not delayed."""
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
        self.loops = [self._loop(conn, assigned) for assigned in self.sources]
        for loop in self.loops:
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
        """Drop the connection and everything that lived in its session; try again after a pause."""
        self.problem = " ".join(str(error).split()) or type(error).__name__
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        refused = isinstance(error, psycopg.errors.InsufficientPrivilege)
        what = "lost the database" if lost else "not allowed" if refused else "cannot work on the sources"
        # Every lane of the relay meets this, shift after shift: the driver tells it once for all of them.
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

    def _loop(self, conn: Connection, assigned: SourceSlots) -> SourceLoop:
        spec, settings = self.spec, assigned.settings
        contract = contracts.get(settings.contract)
        table = resolve(conn, TableName.parse(settings.table))
        findings = contract.check_table(conn, table, settings.jeap.ignore)
        refuse_errors(table, findings)
        statements = contract.relay_statements(table, settings, conn)
        if any(finding.lacks_index for finding in findings):
            # A batch is found by its ids then: the primary key is always there.
            statements = replace(statements, deliver_all=statements.deliver)
        source = Source(assigned.name, settings, conn, statements, contract.maintenance(table), self.tally)
        ownership = self._ownership(source, table, assigned.slots) if settings.ordering == "key" else None
        router = Router(spec.routes, spec.destinations, assigned.name)
        deliveries = Deliveries(conn, table) if router.fans_out else None
        if deliveries is not None:
            deliveries.prepare()
        guard = process.guard(spec.instance, assigned.name, settings)
        dispatcher = Dispatcher(
            router=router,
            destinations=self.destinations,
            transform=load_transform(settings.transform) if settings.transform else None,
            ordered=settings.ordering == "key",
            tally=self.tally,
            tracing=self.tracing,
            envelopes=_envelopes(spec.destinations, assigned.name),
            guarded=settings.on_unroutable == "wait",
            paused=guard.paused,
            trouble=self.trouble,
        )
        loop = SourceLoop(
            source=source,
            ownership=ownership,
            dispatcher=dispatcher,
            settler=Settler(source, ownership, deliveries, guard, self.trouble),
            guard=guard,
            moved=self.moved,
            deliveries=deliveries,
            lock=relay_lock(conn, table, settings, spec.relay.id, spec.instance),
            waker=self._waking(conn, table, settings.doorbell, settings.poll_interval.total_seconds()),
            low=LowWater(source),
            token_prefix=f"{TOKEN_PREFIX}{spec.relay.id}/{spec.instance}/{spec.lane}/{spec.shift}",
        )
        if isinstance(loop.waker, Doorbell):
            self.bells[bell_channel(table)] = loop
            control.listen(conn, bell_channel(table))
        return loop

    def _ownership(self, source: Source, table: TableName, wanted: tuple[int, ...]) -> SlotOwnership:
        relay = self.spec.relay
        owner = Owner.here(relay.id, self.spec.instance, self.spec.lane)
        slots = Slots(source.conn, table, wanted, source.settings.slots, owner)
        slots.prepare(contracts.get(source.settings.contract).side_tables(table))
        longest = max((destination.timeout for destination in self.destinations.values()), default=0.0)
        hold = relay.hold.total_seconds()
        grace = relay.grace.total_seconds() if relay.grace is not None else hold + longest + 1.0
        return SlotOwnership(source, slots, hold, grace)

    def _waking(
        self, conn: Connection, table: TableName, wanted: bool, interval: float
    ) -> Polling | Doorbell:
        if not wanted:
            return Polling(interval)
        lanes = doorbell.installed_lanes(conn, table)
        if self.spec.lane >= lanes:
            log.warning(
                "no doorbell for this lane; polling. Run: outspark init --doorbell --apply",
                extra={"lane": self.spec.lane, "table": str(table), "installed_for": lanes},
            )
            return Polling(interval)
        return Doorbell(conn, lock_class("bell", table), self.spec.lane, interval)


def _envelopes(destinations: Mapping[str, DestinationSettings], source: str) -> dict[str, Envelope]:
    made = {name: make_envelope(settings, source) for name, settings in destinations.items()}
    return {name: envelope for name, envelope in made.items() if envelope is not None}
