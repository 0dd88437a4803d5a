"""Runs the chosen scenarios one after the other, on one server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from outspark.cli.output import progress
from outspark.tools.bench.inbox.measure import measure_inbox_consume, measure_inbox_handle
from outspark.tools.bench.jeap import measure_jeap, measure_jeap_finished
from outspark.tools.bench.outage import measure_outage
from outspark.tools.bench.plan import Plan
from outspark.tools.bench.publishing import measure_broker
from outspark.tools.bench.results import Results
from outspark.tools.bench.run import Run
from outspark.tools.bench.servers import Arena
from outspark.tools.bench.steady import measure_idle, measure_soak
from outspark.tools.bench.throughput import measure_backlog, measure_drain, measure_finished, measure_share
from outspark.tools.bench.trickle import measure_trickle
from outspark.tools.bench.writers import measure_writers

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
    "inbox-consume": measure_inbox_consume,
    "inbox-handle": measure_inbox_handle,
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
