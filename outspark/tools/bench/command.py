"""`outspark bench`: choose what to measure, measure it, and write down what came out."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outspark.errors import ExtraMissing, SettingsError
from outspark.tools.bench.plan import Plan

if TYPE_CHECKING:
    from outspark.tools.bench.results import Results

SCENARIOS = {
    "drain": "the ceiling, bare lanes and Spark, both leases",
    "share": "what Spark costs beside bare lanes, over a long backlog",
    "nats": "NATS JetStream on bare lanes and on Spark",
    "kafka": "Kafka, also beside no broker at all and beside one event at a time",
    "rabbitmq": "RabbitMQ on bare lanes and on Spark",
    "redis": "Redis Streams on bare lanes and on Spark",
    "outage": "what a destination that is down costs the others",
    "trickle": "commit to publish at 50 events/s, polling and with the doorbell",
    "writers": "what the doorbell leaves single-row writers of their rate",
    "finished": "with millions of finished rows in the table",
    "backlog": "the last tenth of a very long backlog beside its first",
    "jeap": "an outbox of jEAP: its ceiling, bare lanes and Spark, and on Kafka beside jEAP's own way to relay",
    "jeap-finished": "an outbox of jEAP with millions of sent messages in it",
    "inbox-consume": "an inbox that consumes from Kafka, half of it copies, beside plain clients",
    "inbox-handle": "an inbox whose handler inserts one row: its ceiling, bare lanes and Spark",
    "idle": "CPU of a relay that has nothing to do",
    "soak": "memory over minutes of steady load",
}
_DEFAULTS = Plan()
_given: list[str] = []

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(args: list[str]) -> int:
    """What the CLI calls; the exit code."""
    _given[:] = args
    command = typer.main.get_command(app)
    code = command.main(args, prog_name="outspark bench", standalone_mode=False)
    return code if isinstance(code, int) else 0


@app.command()
def bench(
    events: Annotated[
        int,
        typer.Option(
            min=1000, help="Events of an ordinary drain; a long one has 5, a huge one 10 times as many."
        ),
    ] = _DEFAULTS.events,
    lanes: Annotated[
        int, typer.Option(min=1, max=8, help="Lanes, and clients of the ceiling.")
    ] = _DEFAULTS.lanes,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Events in one claim.")] = _DEFAULTS.batch,
    rounds: Annotated[
        int,
        typer.Option(
            min=1,
            help="How often drains that are compared count; the result is the median, and one more goes before.",
        ),
    ] = _DEFAULTS.rounds,
    finished: Annotated[
        int, typer.Option(min=0, help="Finished rows in the table for `finished`.")
    ] = _DEFAULTS.finished,
    soak: Annotated[
        float, typer.Option(min=0, metavar="MINUTES", help="How long `soak` lasts; 0 leaves it out.")
    ] = _DEFAULTS.soak_minutes,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Just this: {', '.join(SCENARIOS)}. May be repeated."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A few seconds each, to see that it works; the numbers mean little."),
    ] = False,
    json: Annotated[Path, typer.Option(metavar="FILE", help="Where all numbers go.")] = Path(
        "bench-out/bench.json"
    ),
    plot: Annotated[Path, typer.Option(metavar="FILE", help="Where the picture goes.")] = Path(
        "bench-out/bench.png"
    ),
    docs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write this Markdown page, with the picture beside it."),
    ] = None,
    again: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Measure nothing: report from the JSON of an earlier run. May be repeated, for one done in parts.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 when a target was missed.")] = False,
) -> int:
    """Measure relay and inbox beside the most that the database can do, in one run.

    Starts a PostgreSQL and each broker of its own on this machine and stops them at the end; their data go to
    the temporary folder, so point TMPDIR to a real disk. A broker that this machine does not have is left out.
    Everything with its defaults takes more than two hours. Nothing else should run meanwhile.

    ```
    outspark bench                                 # all of it
    outspark bench --quick                         # does it work?
    outspark bench --only drain --only kafka       # some of it
    outspark bench --docs docs/benchmarks.md       # all of it, as a page
    ```
    """
    plan = replace(
        _DEFAULTS,
        events=events,
        lanes=lanes,
        batch=batch,
        rounds=rounds,
        finished=finished,
        soak_minutes=soak,
    )
    results = (
        _load(again)
        if again
        else _measure(plan.quick() if quick else plan, only or list(SCENARIOS), quick, json)
    )
    _report(results, plot, docs)
    return int(strict and not all(target.passed for target in results.targets))


def _measure(plan: Plan, only: list[str], quick: bool, json: Path) -> Results:
    for name in only:
        if name not in SCENARIOS:
            raise typer.BadParameter(f"--only {name!r} is not one of: {', '.join(SCENARIOS)}")
    try:
        from outspark.tools.bench import machine
        from outspark.tools.bench.measure import measure
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    from outspark.tools.bench.results import Results

    command = shlex.join(["outspark", "bench", *_given])
    results = Results(command, machine.describe(), {}, asdict(plan), quick)
    measure(plan, [name for name in SCENARIOS if name in only], results, lambda: results.save(json))
    return results


def _load(paths: list[Path]) -> Results:
    from outspark.tools.bench.results import Results

    for path in paths:
        if not path.is_file():
            raise SettingsError(f"--from {path}: there is no such file; --json of an earlier run wrote one")
    first, *rest = map(Results.load, paths)
    for part in rest:
        first.add(part)
    return first


def _report(results: Results, plot: Path, docs: Path | None) -> None:
    from rich.console import Console

    from outspark.tools.bench.report import print_report, write_docs

    try:
        from outspark.tools.bench.plot import write_plot
    except ModuleNotFoundError as error:
        raise _missing(error) from error

    print_report(results, Console(width=None if sys.stdout.isatty() else 240))
    write_plot(results, plot)
    written = [plot]
    if docs is not None:
        picture = docs.with_suffix(".png")
        write_plot(results, picture)
        write_docs(results, docs, picture)
        written += [docs, picture]
    typer.echo(f"written: {', '.join(map(str, written))}", err=True)


def _missing(error: ModuleNotFoundError) -> Exception:
    """A package of an extra that is not installed, or a fault in Outspark."""
    missing = (error.name or "").partition(".")[0]
    return ExtraMissing("the bench", "bench") if missing in ("psutil", "matplotlib") else error
