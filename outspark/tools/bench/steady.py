"""What the relay on Spark costs when nothing happens, and whether its memory stays constant."""

from __future__ import annotations

import threading
import time
from statistics import fmean, linear_regression

import psycopg

from outspark.tools.bench import backlog
from outspark.tools.bench.hosts import RelayHosts
from outspark.tools.bench.processes import Meter, Usage
from outspark.tools.bench.results import WARM_UP, Row, Target
from outspark.tools.bench.run import Run
from outspark.tools.bench.trickle import POLL_INTERVAL

FEED = 0.2


def measure_idle(run: Run) -> None:
    """CPU of an idle relay, hand-overs included, polling and with the doorbell."""
    run.begin("idle", 2)
    for bell in (False, True):
        waker = "doorbell" if bell else "polling"
        with (
            run.arena.database(doorbell=bell) as url,
            RelayHosts("spark", url, run.plan, poll_interval=POLL_INTERVAL, doorbell=bell) as lanes,
        ):
            with Meter({"ours": lanes.pids}) as meter:
                time.sleep(run.plan.idle_seconds)
            lanes.check()
        cores = meter.usage["ours"].cpu / meter.seconds / run.plan.lanes
        note = f"idle, {waker}: {cores:.3f} cores per lane"
        run.add(Row("idle", "spark", "row", "null", memory=meter.usage["ours"].peak, note=note))
        run.step(f"idle: {waker}: {cores:.3f} cores per lane")
        run.want(Target(f"idle, {waker}", "≤", 0.1, cores, "cores per lane"))


def measure_soak(run: Run) -> None:
    """Minutes of steady load, with memory measured every second."""
    seconds = run.plan.soak_minutes * 60
    run.begin("soak", 1)
    if not seconds:
        return
    with (
        run.arena.database() as url,
        RelayHosts("spark", url, run.plan, poll_interval=POLL_INTERVAL) as lanes,
    ):
        with Meter({"ours": lanes.pids, "postgres": [run.arena.server.pid]}) as meter:
            fed = _feed(run, url, lanes, seconds)
        handovers = lanes.handovers()
    usage = meter.usage["ours"]
    growth = _growth(usage)
    row = Row("soak", "spark", "row", "null", events=fed, rate=fed / meter.seconds, handovers=handovers)
    row.cpu, row.memory = usage.cpu / fed * 1000, usage.peak
    row.cpu_postgres = meter.usage["postgres"].cpu / fed * 1000
    row.note = f"{run.plan.soak_minutes:g} minutes of steady load; memory {growth:+.1%}"
    run.add(row)
    run.results.curves["soak"] = [list(point) for point in usage.memory]
    run.step(f"soak: memory {growth:+.1%} in {run.plan.soak_minutes:g} minutes")
    run.want(Target(f"growth of memory in {run.plan.soak_minutes:g} minutes of load", "≤", 0.05, growth))


def _feed(run: Run, url: str, lanes: RelayHosts, seconds: float) -> int:
    """Events enqueued, a handful at a time, as many as the rate allows for the time that has passed."""
    started, fed, pause = time.monotonic(), 0, threading.Event()
    with psycopg.connect(url, autocommit=True) as conn:
        while (passed := time.monotonic() - started) < seconds:
            due = round(run.plan.soak_rate * passed) - fed
            if due > 0:
                backlog.append(conn, run.plan, due)
                fed += due
            lanes.check()
            pause.wait(FEED)
    return fed


def _growth(usage: Usage) -> float:
    """How much the fitted line rises from its start to its end, as a share of the mean; 0.01 is one percent."""
    points = usage.memory[int(len(usage.memory) * WARM_UP) :]
    if len(points) < 2:
        return 0.0
    times, memory = zip(*points, strict=True)
    slope = linear_regression(times, memory).slope
    return float(slope * (times[-1] - times[0]) / fmean(memory))
