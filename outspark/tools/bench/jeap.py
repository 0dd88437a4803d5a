"""Drains of a jEAP outbox: against its ceiling, with millions of sent messages in it, and against jEAP's own way."""

from __future__ import annotations

from outspark.tools.bench.drain import Case
from outspark.tools.bench.results import Target
from outspark.tools.bench.run import Run, compare, median_rate
from outspark.tools.bench.tables import JEAP, JEAP_AS_IT_IS

WANTED_OF_CEILING = 0.8
WANTED_BEHIND_SENT = 0.9
WANTED_OF_SERIAL = 20


def measure_jeap(run: Run) -> None:
    """Lanes against the same statements inside the server, then on Kafka against jEAP's own shape."""
    for table in (JEAP_AS_IT_IS, JEAP):
        ceiling, bare, spark = (
            Case("ceiling", "slot", run.plan.events, table=table),
            Case("bare", "slot", run.plan.events, table=table),
            Case("spark", "slot", run.plan.events, table=table),
        )
        samples = run.rounds("jeap", [ceiling, bare, spark])
        run.ceilings[table] = median_rate(samples[ceiling])
        run.add_drains("jeap", samples)
        name = f"jEAP on Spark, {table.note}, of its ceiling"
        run.want(Target(name, "≥", WANTED_OF_CEILING, compare(samples, spark, ceiling), "×"))
    _measure_kafka(run)


def measure_jeap_finished(run: Run) -> None:
    """Messages that are sent and not deleted yet must not slow a lane down; and what they cost without our index."""
    events, finished = run.plan.events, run.plan.finished
    without = Case("spark", "slot", events, table=JEAP)
    behind = Case("spark", "slot", events, table=JEAP, finished=finished)
    samples = run.rounds("jeap-finished", [without, behind])
    run.add_drains("jeap-finished", samples)
    name = f"jEAP, with {finished:,} sent messages, of the rate with none"
    run.want(Target(name, "≥", WANTED_BEHIND_SENT, compare(samples, behind, without), "×"))
    # Once, with few events and no target: it only says what the index is good for.
    as_it_is = Case("spark", "slot", run.plan.single_events, table=JEAP_AS_IT_IS, finished=finished)
    run.add_drains("jeap-finished", run.rounds("jeap-finished", [as_it_is], rounds=1))


def _measure_kafka(run: Run) -> None:
    with run.broker("kafka", "jeap, Kafka") as broker:
        if broker is None:
            return
        # Bare lanes go first, because that also warms up the broker for those that count.
        bare, spark = (Case(host, "slot", run.plan.events, "kafka", table=JEAP) for host in ("bare", "spark"))
        serial = Case("serial", "slot", run.plan.single_events, "kafka", table=JEAP_AS_IT_IS)
        samples = run.rounds("jeap", [bare, spark, serial])
        run.add_drains("jeap", samples)
        reached = compare(samples, spark, serial)
        run.want(Target("jEAP to Kafka on Spark, of jEAP's own shape", "≥", WANTED_OF_SERIAL, reached, "×"))
