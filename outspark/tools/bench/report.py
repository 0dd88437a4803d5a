"""Reports a run: tables on the terminal, and the page in the documentation. Ratios come first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from outspark.tools.bench.results import WARM_UP, Results, Row, Target

HOSTS = {
    "ceiling": "ceiling (SQL)",
    "own": "lane's SQL",
    "bare": "bare lanes",
    "spark": "on Spark",
    "serial": "jEAP's shape",
}

COLUMNS: dict[str, Callable[[Row], str]] = {
    "scenario": lambda row: row.scenario,
    "how": lambda row: HOSTS.get(row.host, row.host),
    "lease": lambda row: row.lease,
    "to": lambda row: row.destination,
    "of the ceiling": lambda row: _number(row.ratio, "{:.2f} ×"),
    "events/s": lambda row: _number(row.rate, "{:,.0f}"),
    "p50 / p99 ms": lambda row: "–" if row.p50 is None else f"{row.p50:.2f} / {row.p99:.2f}",
    "CPU s/1000": lambda row: _number(row.cpu, "{:.3f}"),
    "PostgreSQL": lambda row: _number(row.cpu_postgres, "{:.3f}"),
    "broker": lambda row: _number(row.cpu_broker, "{:.3f}"),
    "peak MB": lambda row: _number(row.memory, "{:,.0f}"),
    "hand-overs": lambda row: _number(row.handovers, "{:d}"),
    "note": lambda row: row.note,
}

TARGET_COLUMNS: dict[str, Callable[[Target], str]] = {
    "what": lambda target: target.name,
    "target": lambda target: f"{target.sense} {_value(target.wanted, target.unit)}",
    "reached": lambda target: _value(target.reached, target.unit),
    "": lambda target: "✓" if target.passed else "✗ missed",
}

METHOD = """\
## How it is measured

Results that are compared come from one run, on an embedded PostgreSQL with its own defaults. Each candidate (a way
to drain the outbox) has its own database and stays up for all rounds; its processes are stopped while another
candidate is measured. Before each drain the bench loads a backlog into a fresh table and runs a checkpoint, while
the lanes own their slots and wait on an empty outbox. It also allocates and frees as much memory as the data files
will grow by: a virtual machine may have to fetch each page from its host first, which would slow a drain down the
longer it takes. Then the loaded table replaces the empty one in one transaction. The measured time runs from there
to the last `delivered_at` (jEAP: `sent_scheduled`, inbox: `completed_at`), both by the database's clock. At the end
every event must be delivered at its first attempt, or the run fails. In an Open Outbox table all slots have the
same number of keys, so that all lanes work to the end. Drains that are compared alternate, the first one of each
candidate is not counted, and a ratio is the ratio of the medians.

- **ceiling**: claim and settle of `lease = "row"` as a SQL loop inside the server, one client per lane, with the
  planner settings of a lane. It uses the plain claim (`FOR UPDATE`, always from the beginning) and waits for the
  disk at each commit, so that it is a yardstick that does not change. [Lanes need not
  wait](how-it-works.md#from-claim-to-settle).
- **lane's SQL**: the same loop with the statements of a lane, which are faster and commit as a lane does.
- **bare lanes**: the lane loop in one plain process per lane, without Spark.
- **on Spark**: the whole relay, with shifts of {shift:g} s.
- **brokers**: each broker runs on this machine for all drains, with a fresh topic for each drain. NATS is JetStream
  on disk; Kafka has 4 partitions, an idempotent producer and `acks=all`; RabbitMQ has a quorum queue, persistent
  messages and publisher confirms; Redis has a stream. After a drain the broker must count every event in the topic.
- **one by one**: bare lanes with the same client that publish one event at a time and wait for its answer;
  {single_events:,} events.
- **jeap**: the table with its seven indexes, and the same table with Outspark's optional index. Every second
  message is marked for immediate sending and overdue, and each has a trace. Lanes hold the ShedLock row as in
  production. The ceiling is a SQL loop with the statements that lanes use on this table, which commit as a lane
  does; each result is compared with the ceiling on the same table.
- **jEAP's shape**: the procedure of jEAP's own relay on jEAP's own table: one client polls for 5 messages, sends
  each by itself, waits for its answer and marks it in a separate transaction. A Python program imitates it with the
  same Kafka client; {single_events:,} events.
- **finished**, **jeap-finished**: a table that already contains finished rows, and keeps the rows of each drain.
  The jEAP outbox has Outspark's optional index; one result is without the index and with {single_events:,} events.
- **backlog**: ten times as many events. The ceiling drains the same backlog: how much of its rate it keeps from the
  first tenth to the last is the effect of a long load on server and machine.
- **outage**: the table contains as many other events with other keys. In one result they are already delivered, in
  the other their destination refuses connections. The rate counts the events that can be delivered.
- **inbox-consume**: a topic with 4 partitions that contains each message twice, the copy some batches after the
  first. The messages are written in one transaction, so that all become visible at the same instant. The measured
  time runs from there until the group's offsets are at the end; then the inbox must contain each message once. The
  ceiling is the INSERT with ON CONFLICT DO NOTHING in batches of the same size, each with a commit that waits for
  the disk, by one plain process per lane that has the parameters for its part of the messages ready in memory.
  Lanes [do less](inbox/feeds.md): they look up first which messages the inbox already has, and while full batches
  arrive only one commit in four waits.
- **inbox-handle**: pending events in the inbox, and a handler that inserts one row. Lanes claim 100 events at a
  time and run 50 handlers in one transaction, as they do by default. The ceiling is a SQL loop inside the server
  with the worker's claim, one INSERT per event, and the completion, in transactions of the same size. At the end
  every event must be completed at its first attempt, and its effect must exist once.
- **trickle**: from the return of the writer's COMMIT until the lane passes the event to its destination, at
  {trickle_rate:g} events a second that arrive at random; both times by the machine's monotonic clock.
- **writers**: `pgbench` with {writers} clients and one INSERT per transaction, while the lanes work.
- **soak**: {soak_rate:,.0f} events a second, with memory read every second; growth is the slope of a line fitted to
  all but the first {warm_up:.0%} of the time.
- **CPU** is user and system time of the processes and all their children; "ours" are Python and the JVM. Memory is
  the sum of their resident sizes, in which shared pages count several times.
"""


def print_report(results: Results, console: Console) -> None:
    console.print(_table(COLUMNS, results.rows, "What was measured"))
    console.print(_table(TARGET_COLUMNS, results.targets, "What it must reach"))
    for scenario, reason in results.left_out.items():
        console.print(f"left out: {scenario}: {reason}", highlight=False, markup=False)
    console.print(_machine(results), highlight=False)


def write_docs(results: Results, path: Path, plot: Path) -> None:
    """Write the page, with a link to the plot in the same folder."""
    parts = [
        "# Benchmarks",
        f"Written by `{results.command}`; `make bench` repeats the measurement. Compare the ratios: each is from "
        "one run. Events a second and milliseconds are of this machine: " + _machine(results),
        *(
            ["This was a quick run, which only checks that the bench works: its numbers mean little."]
            * results.quick
        ),
        *(f"Left out: `{scenario}`: {reason}" for scenario, reason in results.left_out.items()),
        f"![Rates, latencies and memory]({plot.name})",
        "## What it must reach",
        _markdown(TARGET_COLUMNS, results.targets),
        "## What was measured",
        _workload(results),
        _markdown(COLUMNS, results.rows),
        *_profile(results),
        METHOD.format(**results.plan, warm_up=WARM_UP).strip(),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(parts) + "\n")


def _table(columns: dict[str, Callable[..., str]], items: Sequence[object], title: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    for item in items:
        missed = isinstance(item, Target) and not item.passed
        table.add_row(*(column(item) for column in columns.values()), style="red" if missed else None)
    return table


def _markdown(columns: dict[str, Callable[..., str]], items: Sequence[object]) -> str:
    lines = [list(columns), ["---"] * len(columns)]
    lines += [[column(item) for column in columns.values()] for item in items]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _workload(results: Results) -> str:
    plan = results.plan
    return (
        f"{plan['lanes']} lanes, {plan['events']:,} events of {plan['payload']} bytes with {plan['keys']:,} keys, "
        f"batches of {plan['batch']}, {plan['rounds']} rounds. CPU is in seconds per 1000 events: ours, then that "
        "of PostgreSQL and of the broker."
    )


def _profile(results: Results) -> list[str]:
    if not results.profiles:
        return []
    return [
        "## What limits a lane that publishes to a broker",
        f"PostgreSQL, the lanes and the broker share {results.machine['cores']} cores; the notes in the table say how "
        'much of them each took, and what was left. This is where the CPU time of a bare lane with `lease = "row"` '
        "goes, by a profiler:",
        "\n".join(
            f"- **{broker}**: " + ", ".join(f"{name} {share:.0%}" for name, share in profile)
            for broker, profile in results.profiles.items()
        ),
    ]


def _machine(results: Results) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    server = dict(results.server)
    version = server.pop("server_version", "?")
    return f"{machine}. PostgreSQL {version}: " + ", ".join(f"{k} {v}" for k, v in server.items()) + "."


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _value(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{number} {unit}".strip()
