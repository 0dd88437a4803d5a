"""Drains: against the ceiling, Spark against bare lanes, finished rows in the table, a very long backlog."""

from __future__ import annotations

from statistics import median
from typing import get_args

from outspark.config.settings import Lease
from outspark.tools.bench.drain import Case, Sample
from outspark.tools.bench.results import Target
from outspark.tools.bench.run import Run, compare, median_rate, row
from outspark.tools.bench.tables import OPENOUTBOX

LEASES: tuple[Lease, ...] = get_args(Lease)
WANTED_OF_CEILING = {"row": 0.85, "slot": 1.4}
WANTED_OF_BARE = 0.95


def measure_drain(run: Run) -> None:
    """Ceiling, bare lanes and Spark, both leases, no destination to wait for."""
    events = run.plan.events
    ceiling, own = Case("ceiling", "row", events), Case("own", "row", events)
    bare = [Case("bare", lease, events) for lease in LEASES]
    spark = [Case("spark", lease, events) for lease in LEASES]
    samples = run.rounds(
        "drain", [ceiling, own, *(case for pair in zip(bare, spark, strict=True) for case in pair)]
    )
    run.ceilings[OPENOUTBOX] = median_rate(samples[ceiling])
    run.add_drains("drain", samples)
    for case in spark:
        name = f"Spark, lease {case.lease}, of the ceiling"
        run.want(Target(name, "≥", WANTED_OF_CEILING[case.lease], compare(samples, case, ceiling), "×"))
        _want_cpu(run, case, samples[case])


def measure_share(run: Run) -> None:
    """What Spark costs: its lanes and bare lanes by turns, over a backlog long enough for hand-overs."""
    for lease in LEASES:
        bare, spark = (Case(host, lease, run.plan.long_events) for host in ("bare", "spark"))
        samples = run.rounds("share", [bare, spark])
        run.add_drains("share", samples)
        name = f"Spark, lease {lease}, of the bare lanes"
        run.want(Target(name, "≥", WANTED_OF_BARE, compare(samples, spark, bare), "×"))


def measure_finished(run: Run) -> None:
    """Rows that are delivered and not pruned yet must not slow a lane down."""
    for lease in LEASES:
        without = Case("spark", lease, run.plan.events)
        behind = Case("spark", lease, run.plan.events, finished=run.plan.finished)
        samples = run.rounds("finished", [without, behind])
        run.add_drains("finished", samples)
        name = f"lease {lease}, with {run.plan.finished:,} finished rows, of the rate with none"
        run.want(Target(name, "≥", 0.9, compare(samples, behind, without), "×"))


def measure_backlog(run: Run) -> None:
    """The last events of a huge backlog go as fast as the first; beside it, how the server alone keeps its rate."""
    ceiling = Case("ceiling", "row", run.plan.huge_events)
    lanes = [Case("spark", lease, run.plan.huge_events) for lease in LEASES]
    samples = run.rounds("backlog", [ceiling, *lanes])
    most = median_rate(samples[ceiling])
    for case, drains in samples.items():
        first = median(sample.drained.first_tenth for sample in drains)
        kept = first / median(sample.drained.last_tenth for sample in drains)
        note = f"the last tenth at {kept:.3g} × the rate of the first"
        run.add(row("backlog", case.host, case.lease, case.to, drains, most, note))
        name = "the ceiling" if case is ceiling else f"lease {case.lease}"
        run.results.curves[f"backlog {name}"] = drains[-1].drained.curve
        if case in lanes:
            target = f"{name}, last tenth of {case.events:,} events, of the rate of the first"
            run.want(Target(target, "≥", 0.9, kept, "×"))


def _want_cpu(run: Run, case: Case, samples: list[Sample]) -> None:
    cpu = median(sample.cpu_per_1000("ours") or 0.0 for sample in samples)
    name = f"CPU of our processes on Spark, lease {case.lease}"
    run.want(Target(name, "≤", 0.04, cpu, "s per 1000 events"))
