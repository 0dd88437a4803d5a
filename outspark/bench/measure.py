"""Runs the chosen scenarios one after the other, on one server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from outspark.bench.arena import Arena
from outspark.bench.inbox.measure import measure_inbox_take, measure_inbox_work
from outspark.bench.jeap import measure_jeap, measure_jeap_finished
from outspark.bench.outage import measure_outage
from outspark.bench.plan import Plan
from outspark.bench.publishing import measure_broker
from outspark.bench.results import Results
from outspark.bench.run import Run
from outspark.bench.steady import measure_idle, measure_soak
from outspark.bench.throughput import measure_backlog, measure_drain, measure_finished, measure_share
from outspark.bench.trickle import measure_trickle
from outspark.bench.writers import measure_writers
from outspark.cli.output import progress

MEASURES: dict[str, Callable[[Run], None]] = {
    "drain": measure_drain,
    "share": measure_share,
    "nats": partial(measure_broker, name="nats"),
    "kafka": partial(measure_broker, name="kafka"),
    "rabbitmq": partial(measure_broker, name="rabbitmq"),
    "redis": partial(measure_broker, name="redis"),
    "outage": measure_outage,
    "trickle": measure_trickle,
    "writers": measure_writers,
    "finished": measure_finished,
    "backlog": measure_backlog,
    "jeap": measure_jeap,
    "jeap-finished": measure_jeap_finished,
    "inbox-take": measure_inbox_take,
    "inbox-work": measure_inbox_work,
    "idle": measure_idle,
    "soak": measure_soak,
}


def measure(plan: Plan, names: Sequence[str], results: Results, keep: Callable[[], None]) -> None:
    """`results` grows as it goes; `keep` is called after each scenario."""
    with progress() as bar, Arena(plan) as arena:
        results.server = arena.settings()
        run = Run(arena, results, bar)
        for name in names:
            MEASURES[name](run)
            keep()
