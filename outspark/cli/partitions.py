"""`outspark partitions …`: see the partitions of a table, and keep them: made ahead, dropped when final and old."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outspark.cli import options, output
from outspark.cli.exits import EPILOG

if TYPE_CHECKING:
    from outspark.cli.tables import OpenTable
    from outspark.config.fields import PartitionSettings
    from outspark.database.partitions import Partition, Size
    from outspark.maintenance.partitions import Changes

app = typer.Typer(
    help="See the partitions of an outbox or inbox, and keep them: made ahead, dropped when all in them is final and "
    "old.",
    no_args_is_help=True,
    epilog=EPILOG,
    rich_markup_mode="markdown",
)


@app.command("list", epilog=EPILOG)
def list_(
    json: options.Json = False,
    config: options.Config = None,
    source: options.Source = None,
    inbox: options.Inbox = None,
    url: options.Url = None,
    table: options.Table = None,
    contract: options.Contract = None,
) -> None:
    """List the partitions of a table with their times in UTC, oldest first.

    *rows* is what the planner believes, *size* includes indexes.

    ```
    outspark partitions list --inbox billing
    outspark partitions list --source orders --json | jq -r '.partitions[].name'
    ```
    """
    from outspark.cli.tables import open_table
    from outspark.database import partitions

    with open_table(config, source, inbox, url, table, contract) as opened:
        partitions.require_split(opened.conn, opened.table)
        layout = partitions.read(opened.conn, opened.table)
        sizes = partitions.sizes(opened.conn, opened.table)
    present = {one.name for one in layout.partitions if _holds(one, layout.now)}
    if json:
        records = [_record(one, sizes[one.name], one.name in present) for one in layout.partitions]
        output.print_json({"table": str(opened.table), "partitions": records})
        return
    rows = [_row(one, sizes[one.name], one.name in present) for one in layout.partitions]
    output.print_table(("partition", "from", "to", "rows", "size", ""), rows)
    if not present:
        output.note("there is none for the present time: run outspark partitions keep")


@app.command(epilog=EPILOG)
def keep(
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            metavar="hour|day|week|month",
            help="How long a new partition is; otherwise the settings'.",
        ),
    ] = None,
    ahead: Annotated[
        int | None,
        typer.Option(
            "--ahead", metavar="N", help="Partitions beyond the present one; otherwise the settings'."
        ),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option(
            "--retention",
            metavar="AGE",
            help="Drop partitions that ended this long ago, such as 30d; otherwise the settings', or none.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; say what would be created and dropped.")
    ] = False,
    yes: options.Yes = False,
    json: options.Json = False,
    config: options.Config = None,
    source: options.Source = None,
    inbox: options.Inbox = None,
    url: options.Url = None,
    table: options.Table = None,
    contract: options.Contract = None,
) -> None:
    """Create the partitions that are missing from now on, and drop those that are finished: one run, for a schedule.

    A partition goes when it ended the retention ago, and every event in it is final since before then; with it goes
    the knowledge of its messages. What others hold is left for the next run. Without flags it goes by the `partitions`
    of the source or inbox in the settings, and by three days ahead and no retention where there are none. On a
    terminal it asks before it drops; in a script the retention is the answer. A relay, and `outspark inbox`, do
    this by themselves every hour where the settings have `partitions`.

    ```
    outspark partitions keep --inbox billing
    outspark partitions keep --inbox billing --every day --ahead 7 --retention 30d --dry-run
    outspark partitions keep --source orders --retention 30d --json
    ```
    """
    from outspark.cli.tables import open_table
    from outspark.maintenance.partitions import Partitions

    given = _given(every, ahead, retention)
    with open_table(config, source, inbox, url, table, contract) as opened:
        wanted = _wanted(opened, given)
        partitions = Partitions(
            opened.conn,
            opened.table,
            every=wanted.every,
            ahead=wanted.ahead,
            retention=wanted.retention,
            contract=opened.contract,
        )
        changes = partitions.plan()
        if not dry_run:
            if changes.dropped and sys.stdin.isatty():
                names = ", ".join(changes.dropped)
                output.confirm(f"Drop from {opened.table}, with all events in them: {names}?", yes=yes)
            changes = partitions.run_once()
    _report(changes, dry_run, json)


def _given(every: str | None, ahead: int | None, retention: str | None) -> dict[str, Any]:
    """The flags that were given, once they are right."""
    from pydantic import ValidationError

    from outspark.config import describe
    from outspark.config.fields import PartitionSettings

    flags = {"every": every, "ahead": ahead, "retention": retention}
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        PartitionSettings.model_validate(given)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        words = describe.words(PartitionSettings.model_fields[name])
        raise typer.BadParameter(f"--{name} {given[name]} must be {words}") from None
    return given


def _wanted(opened: OpenTable, given: dict[str, Any]) -> PartitionSettings:
    """What the settings say, with the flags over it."""
    from outspark.config.fields import PartitionSettings

    known = (opened.partitions or PartitionSettings()).model_dump(exclude_none=True)
    return PartitionSettings.model_validate({**known, **given})


def _report(changes: Changes, dry_run: bool, json: bool) -> None:
    if json:
        output.print_json({**output.record(changes), "dry_run": dry_run})
        return
    would = "would be " if dry_run else ""
    lines = [*_lines(f"{would}created", changes.created), *_lines(f"{would}dropped", changes.dropped)]
    for line in lines or ["nothing to do"]:
        typer.echo(line)
    for name in changes.busy:
        output.note(f"{name} is in use, and left for the next run")


def _lines(verb: str, names: Iterable[str]) -> list[str]:
    return [f"{name} {verb}" for name in names]


def _holds(partition: Partition, now: datetime) -> bool:
    from outspark.database.partitions import FIRST, LAST

    return not partition.is_default and (partition.first or FIRST) <= now < (partition.last or LAST)


def _record(partition: Partition, size: Size, present: bool) -> dict[str, Any]:
    times = {"first": partition.first, "last": partition.last}
    in_utc = {name: None if at is None else at.astimezone(UTC).isoformat() for name, at in times.items()}
    return {**output.record(partition), **in_utc, **output.record(size), "present": present}


def _row(partition: Partition, size: Size, present: bool) -> list[str]:
    from rich.filesize import decimal

    rows = "?" if size.rows is None else f"~{size.rows}"
    mark = "default" if partition.is_default else "present" if present else ""
    return [partition.name, _when(partition.first), _when(partition.last), rows, decimal(size.bytes), mark]


def _when(at: datetime | None) -> str:
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"
