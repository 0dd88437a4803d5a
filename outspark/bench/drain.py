"""One drain: the same backlog, revealed to the ceiling, to bare lanes, to the relay on Spark or to what it stands in
for, and timed."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from outspark.bench import backlog
from outspark.bench.arena import Arena
from outspark.bench.backlog import STUCK_TYPE, Between, Connection, Drained
from outspark.bench.brokers import Broker, BrokerName
from outspark.bench.ceiling import Ceiling
from outspark.bench.hosts import Hosts
from outspark.bench.processes import Meter, Usage
from outspark.bench.serial import Serial
from outspark.bench.tables import OPENOUTBOX, Table
from outspark.embedded.server import HOST, free_port
from outspark.errors import OutsparkError
from outspark.settings import Lease

LOOK = 0.1
SLOWEST = 200.0
"""Events a second below which a drain is taken to be stuck."""

Host = Ceiling | Hosts | Serial


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
        """Who took how much of the machine; the rest was idle, or went to whatever else ran."""
        names = {"ours": "lanes", "postgres": "PostgreSQL", "broker": self.broker}
        cores = {names[group]: usage.cpu / self.seconds for group, usage in self.usage.items()}
        cores["rest"] = max((os.cpu_count() or 1) - sum(cores.values()), 0.0)
        return "cores used: " + ", ".join(f"{name} {used:.2f}" for name, used in cores.items())


def drain(arena: Arena, case: Case, profile: Path | None = None) -> Sample:
    """Everybody waits, warm, on an empty table; then the backlog is there, and the clock starts."""
    with ExitStack() as stack:
        url = stack.enter_context(arena.database(case.events, case.finished, case.between, case.table))
        broker = None if case.destination == "null" else stack.enter_context(arena.broker(case.destination))
        topic = broker.fresh_topic() if broker is not None else "{type}"
        host = _host(arena, case, url, broker, topic, profile)
        stack.enter_context(host)
        conn = stack.enter_context(backlog.watch(url))
        roots = {"ours": host.pids, "postgres": [arena.server.pid]}
        if broker is not None:
            roots["broker"] = [broker.pid]
        before = host.handovers()
        with Meter(roots) as meter:
            since = backlog.reveal(conn, case.table)
            host.go()
            _await_drained(conn, host, case)
        handovers = host.handovers() - before
        if broker is not None and (kept := broker.count(topic)) != case.events:
            raise OutsparkError(f"{broker.title} holds {kept} messages of {case.events} events")
        drained = backlog.drained(conn, since, case.events, case.table)
        title = broker.title if broker is not None else "broker"
        return Sample(drained, meter.usage, meter.seconds, handovers, title)


def _host(
    arena: Arena, case: Case, url: str, broker: Broker | None, topic: str, profile: Path | None
) -> Host:
    if case.host == "ceiling" or case.host == "own":
        return Ceiling(url, arena.plan, case.table, case.lease, own=case.host == "own")
    if case.host == "serial":
        assert broker is not None
        return Serial(url, case.table.outbox, broker.settings(), topic)
    destinations: dict[str, Any] = {"bench": broker.settings() if broker is not None else {"type": "null"}}
    routes = [{"match": "*", "destination": "bench", "topic": topic}]
    if case.between == "stuck":
        destinations["down"] = down()
        routes.insert(0, {"match": STUCK_TYPE, "destination": "down"})
    return Hosts(
        case.host,
        url,
        arena.plan,
        case.table,
        case.lease,
        destinations=destinations,
        routes=routes,
        one_by_one=case.one_by_one,
        profile=profile,
    )


def down() -> dict[str, Any]:
    """A destination where nobody listens."""
    return {"type": "nats", "url": f"nats://{HOST}:{free_port()}"}


def _await_drained(conn: Connection, host: Host, case: Case) -> None:
    deadline = time.monotonic() + 60 + case.events / SLOWEST
    while not backlog.is_drained(conn, case.table):
        host.check()
        if time.monotonic() >= deadline:
            raise OutsparkError(f"{case.events} events were not drained in time")
        time.sleep(LOOK)
