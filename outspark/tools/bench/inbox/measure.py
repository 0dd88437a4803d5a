"""The inbox: consuming from Kafka beside plain clients, and handling beside the same statements inside the server."""

from __future__ import annotations

from outspark.tools.bench.drain import Case
from outspark.tools.bench.inbox.consuming import ConsumeCase, ConsumeStand
from outspark.tools.bench.results import Target
from outspark.tools.bench.run import Run, compare, median_rate, row
from outspark.tools.bench.tables import INBOX

WANTED_OF_CLIENTS = 0.7
WANTED_RATE, WANTED_OF_SQL = 5000, 0.5


def measure_inbox_consume(run: Run) -> None:
    """Messages of Kafka, half of them copies, beside plain clients that hold them in memory."""
    with run.broker("kafka", "inbox-consume") as broker:
        if broker is None:
            return
        messages = run.plan.events
        ceiling, bare, spark = (
            ConsumeCase("ceiling", messages),
            ConsumeCase("bare", messages),
            ConsumeCase("spark", messages),
        )
        stands = {case: ConsumeStand(run.arena, case) for case in (ceiling, bare, spark)}
        samples = run.take_turns("inbox-consume", stands)
    most = median_rate(samples[ceiling])
    for case, drains in samples.items():
        run.add(row("inbox-consume", case.host, "–", case.source, drains, most, drains[-1].cores_used()))
    reached = compare(samples, spark, ceiling)
    run.want(Target("consuming from Kafka on Spark, of the ceiling", "≥", WANTED_OF_CLIENTS, reached, "×"))


def measure_inbox_handle(run: Run) -> None:
    """A handler that inserts one row, bare and on Spark; either of two targets is enough."""
    events = run.plan.events
    ceiling, bare, spark = (
        Case("ceiling", "row", events, table=INBOX),
        Case("bare", "row", events, table=INBOX),
        Case("spark", "row", events, table=INBOX),
    )
    samples = run.rounds("inbox-handle", [ceiling, bare, spark])
    run.ceilings[INBOX] = median_rate(samples[ceiling])
    run.add_drains("inbox-handle", samples)
    rate = median_rate(samples[spark])
    if rate >= WANTED_RATE:
        run.want(Target("handling on Spark, rate", "≥", WANTED_RATE, rate, "events/s"))
    else:
        reached = compare(samples, spark, ceiling)
        run.want(Target("handling on Spark, of the ceiling", "≥", WANTED_OF_SQL, reached, "×"))
