"""A trickle of single events on Spark, across hand-overs: how long from commit to publish.

Commit is when the writer's COMMIT has returned, publish is when the lane hands the event to its destination; both
are read from the clock that all processes of the machine share. Events come at random, at 50 a second on average:
at a fixed interval they would fall into step with a lane that polls.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from statistics import quantiles

import psycopg

from outspark.errors import OutsparkError
from outspark.outbox.openoutbox import NewEvent, Outbox
from outspark.tools.bench import probe
from outspark.tools.bench.backlog import EVENT_TYPE, OUTBOX, Backlog, Connection
from outspark.tools.bench.hosts import RelayHosts
from outspark.tools.bench.results import Row, Target
from outspark.tools.bench.run import Run

# The default of the product: a lane that has just worked polls every 20 ms, and less often after a second without work.
POLL_INTERVAL = "500ms"
WANTED = {"polling": (12.0, 25.0), "doorbell": (1.5, 4.0)}
SEED = 50
ARRIVAL_TIMEOUT = 10.0


def measure_trickle(run: Run) -> None:
    """Commit to publish at 50 events a second, polling and with the doorbell."""
    run.begin("trickle", len(WANTED))
    for waker in WANTED:
        _trickle(run, waker)


def _trickle(run: Run, waker: str) -> None:
    bell = waker == "doorbell"
    with (
        tempfile.TemporaryDirectory(prefix="outspark-bench-") as folder,
        run.arena.database(doorbell=bell) as url,
    ):
        stamps = Path(folder) / "stamps"
        with psycopg.connect(url, autocommit=True) as conn:
            with RelayHosts(
                "spark",
                url,
                run.plan,
                poll_interval=POLL_INTERVAL,
                doorbell=bell,
                transform=probe.HOOK,
                environ={probe.VARIABLE: str(stamps)},
            ) as lanes:
                before = lanes.handovers()
                committed = _write(conn, run)
                handovers = lanes.handovers() - before
                published = _await_published(Backlog(conn, run.plan), stamps, committed)
    latencies = sorted((published[id] - at) / 1e6 for id, at in committed.items())
    p50, p99 = (quantiles(latencies, n=100)[percent - 1] for percent in (50, 99))
    _record(run, waker, latencies, p50, p99, handovers)


def _record(run: Run, waker: str, latencies: list[float], p50: float, p99: float, handovers: int) -> None:
    row = Row("trickle", "spark", "row", "null", events=len(latencies), p50=p50, p99=p99, handovers=handovers)
    row.note = waker
    run.add(row)
    run.results.curves[f"trickle {waker}"] = latencies[:: max(len(latencies) // 500, 1)]
    run.step(f"trickle: {waker}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, {handovers} hand-overs")
    for name, wanted, reached in zip(("p50", "p99"), WANTED[waker], (p50, p99), strict=True):
        run.want(Target(f"commit to publish, {waker}, {name}", "≤", wanted, reached, "ms"))


def _write(conn: Connection, run: Run) -> dict[str, int]:
    """Event id -> when its COMMIT had returned."""
    plan, chance = run.plan, random.Random(SEED)
    outbox, payload = Outbox(str(OUTBOX)), bytes(plan.payload)
    committed: dict[str, int] = {}
    due = time.monotonic()
    end = due + plan.trickle_seconds
    while (due := due + chance.expovariate(plan.trickle_rate)) < end:
        time.sleep(max(due - time.monotonic(), 0.0))
        key = f"key-{chance.randrange(plan.keys)}"
        [id] = outbox.enqueue(conn, NewEvent(type=EVENT_TYPE, payload=payload, key=key))
        committed[str(id)] = time.monotonic_ns()
    return committed


def _await_published(backlog: Backlog, stamps: Path, committed: dict[str, int]) -> dict[str, int]:
    deadline = time.monotonic() + ARRIVAL_TIMEOUT
    while not backlog.is_drained():
        if time.monotonic() >= deadline:
            raise OutsparkError("a trickle did not arrive in time")
        time.sleep(0.05)
    published = probe.read(stamps)
    if lost := committed.keys() - published.keys():
        raise OutsparkError(f"{len(lost)} of {len(committed)} events were not published")
    return published
