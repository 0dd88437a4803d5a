"""One drain: the same backlog, revealed to the ceiling, to bare lanes or to the relay on Spark, and timed."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outspark.bench import backlog, jetstream
from outspark.bench.arena import Arena
from outspark.bench.backlog import Connection, Drained
from outspark.bench.ceiling import Ceiling
from outspark.bench.hosts import Destination, Hosts
from outspark.bench.processes import Meter, Usage
from outspark.embedded.nats import Nats
from outspark.errors import OutsparkError
from outspark.settings import Lease

LOOK = 0.1
SLOWEST = 200.0
"""Events a second below which a drain is taken to be stuck."""


@dataclass(frozen=True, slots=True)
class Case:
    host: Literal["ceiling", "own", "bare", "spark"]
    lease: Lease
    events: int
    destination: Destination = "null"
    finished: int = 0

    def __str__(self) -> str:
        extra = f", {self.finished:,} finished" if self.finished else ""
        return f"{self.host} {self.lease} {self.destination}, {self.events:,} events{extra}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One drain of one case. `handovers` happened while it was under way."""

    drained: Drained
    usage: dict[str, Usage]
    seconds: float
    handovers: int

    def cpu_per_1000(self, group: str) -> float | None:
        """CPU seconds of a group of processes; None where it has none."""
        usage = self.usage.get(group)
        return None if usage is None or not usage.cpu else usage.cpu / self.drained.events * 1000

    def cores(self, group: str) -> float:
        return self.usage[group].cpu / self.seconds if group in self.usage else 0.0


def drain(arena: Arena, case: Case, profile: Path | None = None) -> Sample:
    """Everybody waits, warm, on an empty table; then the backlog is there, and the clock starts."""
    with ExitStack() as stack:
        url = stack.enter_context(arena.database(case.events, case.finished))
        nats = stack.enter_context(Nats()) if case.destination == "nats" else None
        if nats is not None:
            jetstream.create_stream(nats.url)
        host = _host(arena, case, url, nats, profile)
        stack.enter_context(host)
        conn = stack.enter_context(backlog.watch(url))
        roots = {"ours": host.pids, "postgres": [arena.server.pid]}
        if nats is not None:
            roots["nats"] = [nats.pid]
        before = host.handovers()
        with Meter(roots) as meter:
            since = backlog.reveal(conn)
            host.go()
            _await_drained(conn, host, case.events)
        handovers = host.handovers() - before
        if nats is not None and (kept := jetstream.count(nats.url)) != case.events:
            raise OutsparkError(f"JetStream holds {kept} messages of {case.events} events")
        return Sample(backlog.drained(conn, since, case.events), meter.usage, meter.seconds, handovers)


def _host(arena: Arena, case: Case, url: str, nats: Nats | None, profile: Path | None) -> Ceiling | Hosts:
    if case.host == "ceiling" or case.host == "own":
        return Ceiling(url, arena.plan, own=case.host == "own")
    return Hosts(
        case.host,
        url,
        arena.plan,
        lease=case.lease,
        destination=case.destination,
        broker=nats.url if nats is not None else None,
        profile=profile,
    )


def _await_drained(conn: Connection, host: Ceiling | Hosts, events: int) -> None:
    deadline = time.monotonic() + 60 + events / SLOWEST
    while not backlog.is_drained(conn):
        host.check()
        if time.monotonic() >= deadline:
            raise OutsparkError(f"{events} events were not drained in time")
        time.sleep(LOOK)
