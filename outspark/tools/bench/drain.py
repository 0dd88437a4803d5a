"""Drains: a backlog, revealed to the ceiling, to bare lanes, to lanes on Spark or to jEAP's own way to relay, and
timed."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import psycopg

from outspark.config.settings import Lease
from outspark.errors import OutsparkError
from outspark.tools.bench import memory
from outspark.tools.bench.backlog import EVENT_TYPE, STUCK_TYPE, Backlog, Between, Drained
from outspark.tools.bench.ceiling import Ceiling
from outspark.tools.bench.hosts import InboxHosts, RelayHosts
from outspark.tools.bench.inbox.handling import HandlingCeiling
from outspark.tools.bench.jeap_serial import Serial
from outspark.tools.bench.processes import Meter, Usage
from outspark.tools.bench.servers import Arena
from outspark.tools.bench.tables import OPENOUTBOX, Table
from outspark.tools.brokers import Broker, BrokerName
from outspark.tools.servers.server import HOST, free_port

POLL = 0.1
SLOWEST = 200.0
"""Events a second below which a drain counts as stuck."""
GROWTH = 3000
"""Bytes that files may grow by while an event is claimed and settled: new versions of its row, index entries, WAL."""

Host = Ceiling | RelayHosts | Serial | HandlingCeiling | InboxHosts


@dataclass(frozen=True, slots=True)
class Case:
    host: Literal["ceiling", "own", "bare", "spark", "serial"]
    lease: Lease
    events: int
    destination: Literal["null"] | BrokerName = "null"
    finished: int = 0
    one_by_one: bool = False
    """On bare lanes: each event is published by itself, and its answer awaited."""
    between: Between = "nothing"
    """As many other events lie between these; those that are stuck go to a destination that is down."""
    table: Table = OPENOUTBOX

    @property
    def to(self) -> str:
        if self.host in ("ceiling", "own"):
            return "–"
        if self.table.inbox:
            return "handler"
        return self.destination + ", one by one" * self.one_by_one

    def __str__(self) -> str:
        extra = f", {self.finished:,} finished" if self.finished else ""
        extra += f", as many {self.between}" if self.between != "nothing" else ""
        extra += f", {self.table.name}" if self.table != OPENOUTBOX else ""
        return f"{self.host} {self.lease} {self.to}, {self.events:,} events{extra}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One drain of one case. `handovers` happened while it was under way."""

    drained: Drained
    usage: dict[str, Usage]
    seconds: float
    handovers: int
    broker: str = "broker"

    def cpu_per_1000(self, group: str) -> float | None:
        """CPU seconds of a group of processes; None where it has none."""
        usage = self.usage.get(group)
        return None if usage is None or not usage.cpu else usage.cpu / self.drained.events * 1000

    def cores_used(self) -> str:
        """How many cores each group of processes used; the rest was idle, or used by other programs."""
        names = {"ours": "lanes", "postgres": "PostgreSQL", "broker": self.broker}
        cores = {names[group]: usage.cpu / self.seconds for group, usage in self.usage.items()}
        cores["rest"] = max((os.cpu_count() or 1) - sum(cores.values()), 0.0)
        return "cores used: " + ", ".join(f"{name} {used:.2f}" for name, used in cores.items())


@dataclass(slots=True)
class Stand:
    """A case with a database and a host of its own, up from its first drain to its last.

    Between drains the processes are stopped, so that they do not slow down the stand that is measured then.
    """

    arena: Arena
    case: Case
    profile: Path | None = None
    """Where the first bare lane writes its profile."""
    _open: ExitStack = field(default_factory=ExitStack)
    _broker: Broker | None = None
    _host: Host = field(init=False)
    _backlog: Backlog = field(init=False)

    def __enter__(self) -> Self:
        arena, case = self.arena, self.case
        with ExitStack() as stack:
            url = stack.enter_context(arena.database(case.table))
            if case.destination != "null":
                self._broker = stack.enter_context(arena.broker(case.destination))
            conn = psycopg.connect(url, autocommit=True, application_name="outspark bench")
            stack.enter_context(conn)
            self._backlog = Backlog(conn, arena.plan, case.table, case.events, case.finished, case.between)
            self._host = self._open_host(url)
            stack.enter_context(self._host)
            self._host.pause()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def drain(self) -> Sample:
        """The host waits, warm, on an empty table; then the backlog is revealed, and the clock starts."""
        host, backlog, broker = self._host, self._backlog, self._broker
        # A lane that was stopped is late for its hand-over, and makes up for it while the backlog is loaded.
        host.resume()
        topic = EVENT_TYPE if broker is None else broker.fresh_topic()
        backlog.load(topic)
        host.await_ready()
        roots = {"ours": host.pids, "postgres": [self.arena.server.pid]}
        if broker is not None:
            roots["broker"] = [broker.pid]
        before = host.handovers()
        with memory.ready(self.case.events * GROWTH), Meter(roots) as meter:
            backlog.reveal()
            host.go()
            self._await_drained()
        handovers = host.handovers() - before
        host.pause()
        if broker is not None and (kept := broker.count(topic)) != self.case.events:
            raise OutsparkError(f"{broker.title} holds {kept} messages of {self.case.events} events")
        title = broker.title if broker is not None else "broker"
        drained = backlog.drained()
        backlog.clear()
        return Sample(drained, meter.usage, meter.seconds, handovers, title)

    def _open_host(self, url: str) -> Host:
        plan, case, broker = self.arena.plan, self.case, self._broker
        if case.table.inbox:
            return self._open_inbox_host(url)
        if case.host == "ceiling" or case.host == "own":
            return Ceiling(url, plan, case.table, case.lease, own=case.host == "own")
        if case.host == "serial":
            assert broker is not None
            return Serial(url, case.table.outbox, broker.settings())
        destinations: dict[str, Any] = {
            "bench": broker.settings() if broker is not None else {"type": "null"}
        }
        routes = [{"match": "*", "destination": "bench", "topic": "{type}"}]
        if case.between == "stuck":
            destinations["down"] = down()
            routes.insert(0, {"match": STUCK_TYPE, "destination": "down"})
        return RelayHosts(
            case.host,
            url,
            plan,
            case.table,
            case.lease,
            destinations=destinations,
            routes=routes,
            one_by_one=case.one_by_one,
            profile=self.profile,
        )

    def _open_inbox_host(self, url: str) -> Host:
        plan, case = self.arena.plan, self.case
        if case.host == "bare" or case.host == "spark":
            return InboxHosts(case.host, url, plan, "handle")
        return HandlingCeiling(url, plan, case.table)

    def _await_drained(self) -> None:
        deadline = time.monotonic() + 60 + self.case.events / SLOWEST
        while not self._backlog.is_drained():
            self._host.check()
            if time.monotonic() >= deadline:
                raise OutsparkError(f"{self.case.events} events were not drained in time")
            time.sleep(POLL)


def drain(arena: Arena, case: Case, profile: Path | None = None) -> Sample:
    """A single drain."""
    with Stand(arena, case, profile) as stand:
        return stand.drain()


def down() -> dict[str, Any]:
    """A destination that refuses connections."""
    return {"type": "nats", "url": f"nats://{HOST}:{free_port()}"}
