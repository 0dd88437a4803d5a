"""A run for people: tables on the terminal, and the page in the documentation. Ratios come first."""

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

Rows that are compared come from one run, on an embedded PostgreSQL with its own defaults. Each row has a database and
processes of its own, which stay up for all rounds and are stopped while other rows are measured. For each drain a
backlog is loaded into a fresh table, followed by a checkpoint, while the lanes wait on an empty outbox and own their
slots. As much memory as the files will grow by is touched and set free, because a virtual machine may have to fetch
each page from its host first, and a drain would get slower the longer it takes. Then the loaded table replaces
the empty one, in one transaction; the time runs from there to the last `delivered_at` (`sent_scheduled` with jEAP,
`completed_at` in an inbox), both by the database's clock. At the end every event must be delivered at its first
attempt, or the run fails. In an Open Outbox table each slot has as many keys, so that all lanes work to the end.
Drains that are compared take turns, the first of each does not count, and a ratio is that of the medians.

- **ceiling**: claim and settle of `lease = "row"` as a loop in SQL inside the server, a client per lane, under the
  planner settings of a lane. Its claim is the plain one (`FOR UPDATE`, always from the beginning) and each of its
  commits waits for the disk, a yardstick that stays the same. [Lanes need not
  wait](how-it-works.md#from-claim-to-settle).
- **lane's SQL**: the same loop with the statements that a lane really uses, which are faster and commit as a lane does.
- **bare lanes**: the lane loop in one plain process per lane, without Spark.
- **on Spark**: the whole relay, with shifts of {shift:g} s.
- **brokers**: each on this machine, running on from one drain to the next, with a fresh topic for each. NATS is
  JetStream on disk; Kafka has 4 partitions, an idempotent producer and `acks=all`; RabbitMQ has a quorum queue,
  persistent messages and publisher confirms; Redis has a stream. Afterwards the topic must hold every event, by the
  broker's own count.
- **one by one**: bare lanes with the same client, which publish each event by itself and await its answer;
  {single_events:,} events.
- **jeap**: the table with its seven indexes, and the same with our optional one, every second message marked for
  immediate sending and overdue, each with a trace. Lanes hold the ShedLock row as in production. Its ceiling is the
  loop in SQL with the statements that lanes use there, which commit as a lane does; each row compares with the one on
  its own table.
- **jEAP's shape**: the way of jEAP's own relay on the table as jEAP makes it: one client selects 5 messages, sends
  each by itself, awaits its answer and marks it in a transaction of its own. The bench does this in Python, with the
  same Kafka client; {single_events:,} events.
- **finished**, **jeap-finished**: finished rows in the table, which stays the same, so that what was drained joins
  them. Of a jEAP outbox with our optional index; and, once, without it and with {single_events:,} events.
- **backlog**: ten times as many events. The ceiling has them too: how much of its rate it keeps from the first tenth to
  the last says what the server and the machine make of a long load.
- **outage**: as many others, of other keys, lie between the events; once they are delivered already, once their
  destination refuses connections. The rate is that of those that can be delivered.
- **inbox-consume**: a topic with 4 partitions, that holds each message twice, the copy some batches after the
  first. It is written in a transaction, which reveals all of it in one instant; the time runs from there until the
  offsets of the group stand at the end, and then the inbox must hold each message once. The ceiling is the INSERT with
  ON CONFLICT DO NOTHING, in batches as large, each with a commit that waits for the disk, by one plain process per
  lane, with the parameters for its part of the messages ready in memory. Lanes [do it for less](inbox/feeds.md): they
  first look up which messages are stored already, and in a flood one commit in four waits.
- **inbox-handle**: events that wait in the inbox, and a handler that inserts one row. Lanes claim 100 at a time and let
  50 handlers share a transaction, as they do by default. The ceiling is a loop in SQL inside the server with the
  worker's claim, one INSERT for each event, and its completion, in transactions as large. In the end every event is
  completed at its first attempt, and its effect is there once.
- **trickle**: from the return of the writer's COMMIT until the lane hands the event to its destination, at
  {trickle_rate:g} events a second that come at random; both times from the machine's monotonic clock.
- **writers**: `pgbench`, {writers} clients with one INSERT a transaction, lanes at work beside them.
- **soak**: {soak_rate:,.0f} events a second, memory read every second; growth is the rise of a line fitted to all but
  the first {warm_up:.0%} of the time.
- **CPU** is user and system time of the processes and all their children; "ours" are those of Outspark, in Python and
  the JVM. Memory is their resident size added up, so that shared pages count several times.
"""


def print_report(results: Results, console: Console) -> None:
    console.print(_table(COLUMNS, results.rows, "What was measured"))
    console.print(_table(TARGET_COLUMNS, results.targets, "What it must reach"))
    for scenario, reason in results.left_out.items():
        console.print(f"left out: {scenario}: {reason}", highlight=False, markup=False)
    console.print(_machine(results), highlight=False)


def write_docs(results: Results, path: Path, plot: Path) -> None:
    """The page, with a link to the plot that lies beside it."""
    parts = [
        "# Benchmarks",
        f"Written by `{results.command}`; `make bench` measures it again. Compare ratios: they were taken within "
        "one run. Events a second and milliseconds are those of this machine: " + _machine(results),
        *(["This was a quick run, to see that the bench works: its numbers mean little."] * results.quick),
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
