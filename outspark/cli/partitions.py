"""`outspark partitions …`: list the partitions of a table, create them ahead of time, and drop old ones."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outspark.cli import options, output
from outspark.cli.commands import command, commands, flag

if TYPE_CHECKING:
    from outspark.cli.tables import OpenTable
    from outspark.config.fields import PartitionSettings
    from outspark.database.partitions import Partition, Size
    from outspark.maintenance.partitions import Changes

app = commands(
    "List the partitions of an outbox or inbox, create them ahead of time, and drop those whose events are final "
    "and old."
)


@command(app, "list")
def list_(*, json: options.Json = False, target: options.TableOptions) -> None:
    """List the partitions of a table with their times in UTC, oldest first.

    *rows* is the estimate of PostgreSQL's planner, and *size* includes the indexes.

    ```
    outspark partitions list --inbox billing
    outspark partitions list --source orders --json | jq -r '.partitions[].name'
    ```
    """
    from outspark.database import partitions

    with target.open() as opened:
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


@command(app)
def keep(
    *,
    every: Annotated[
        str | None,
        flag(
            "--every hour|day|week|month",
            "Time that a new partition covers, instead of that in the settings.",
        ),
    ] = None,
    ahead: Annotated[
        int | None,
        flag("--ahead N", "Number of partitions after the present one, instead of that in the settings."),
    ] = None,
    retention: Annotated[
        str | None,
        flag(
            "--retention AGE",
            "Drop partitions that ended longer ago than this, such as 30d, instead of the age in the settings.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, flag("--dry-run", "Change nothing; print what the command would create and drop.")
    ] = False,
    yes: options.Yes = False,
    json: options.Json = False,
    target: options.TableOptions,
) -> None:
    """Create the partitions that will be needed next, and drop finished ones, once: run the command on a schedule.

    The command drops a partition when the partition ended longer ago than the retention, and all its events have been
    final for as long. An inbox then no longer recognizes the messages in it. A partition that another session uses is
    left for the next run. Without flags, the `partitions` of the source or inbox in the settings apply; without those,
    partitions are created for three days ahead and none is dropped. On a terminal the command asks before it drops a
    partition; in a script it does not ask. `outspark relay` and `outspark inbox` do the same every hour when the
    settings have `partitions`.

    ```
    outspark partitions keep --inbox billing
    outspark partitions keep --inbox billing --every day --ahead 7 --retention 30d --dry-run
    outspark partitions keep --source orders --retention 30d --json
    ```
    """
    from outspark.maintenance.partitions import Partitions

    given = _given(every, ahead, retention)
    with target.open() as opened:
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
    """The flags that were given; BadParameter if a value is not allowed."""
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
    """The settings of the source or inbox, with the flags on top."""
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
