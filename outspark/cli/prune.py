"""`outspark prune`: delete finished events past their retention."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from outspark.cli import options, output
from outspark.cli.commands import flag

if TYPE_CHECKING:
    from outspark.cli.tables import Kind
    from outspark.maintenance.operations import Maintenance, Pruned, Retention


def prune(
    *,
    delivered_age: Annotated[
        str | None,
        flag(
            "--delivered-age AGE",
            "Delete events that were delivered, or in an inbox completed, longer ago than this.",
        ),
    ] = None,
    dead_age: Annotated[
        str | None,
        flag(
            "--dead-age AGE",
            "Delete events that died longer ago than this; on jeap, all unsent events that are older.",
        ),
    ] = None,
    batch: Annotated[
        int, flag("--batch N", "Delete this many events in each transaction.", min=1, max=10_000)
    ] = 1000,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
    target: options.TableOptions,
) -> None:
    """Delete delivered and dead events that exceed their age, in small batches that never block writers.

    An age is a number with a unit: `30m`, `12h`, `7d`. Events of a kind whose age is not given are kept. On a terminal
    the command shows how many events it would delete, and asks for confirmation; in a script it deletes them.

    An inbox recognizes a message by its row: if the broker delivers a message again after its row was pruned, the inbox
    handles it again. Keep rows longer than any broker may redeliver a message.

    ```
    outspark prune --delivered-age 7d --dead-age 30d --dry-run
    outspark prune --delivered-age 7d --yes
    outspark prune --inbox billing --delivered-age 30d
    ```
    """
    from outspark.maintenance.operations import Retention

    if delivered_age is None and dead_age is None:
        raise typer.BadParameter("nothing to do: give --delivered-age, --dead-age or both, such as 7d")
    retention = Retention(
        delivered=options.parse_duration(delivered_age) if delivered_age else None,
        dead=options.parse_duration(dead_age) if dead_age else None,
    )
    with target.open() as opened:
        expected = opened.maintenance.count_prunable(retention)
        if not dry_run:
            if expected.total and sys.stdin.isatty():
                output.confirm(f"Delete {_words(expected, opened.kind)} from {opened.table}?", yes=yes)
            expected = _delete(opened.maintenance, retention, expected, batch)
    if json:
        output.print_json({"delivered": expected.delivered, "dead": expected.dead, "dry_run": dry_run})
    else:
        typer.echo(f"{_words(expected, opened.kind)} {'would be deleted' if dry_run else 'deleted'}")


def _delete(maintenance: Maintenance, retention: Retention, expected: Pruned, batch: int) -> Pruned:
    from outspark.maintenance.operations import Pruned

    done = Pruned()
    with output.progress() as bar:
        task = bar.add_task("pruning", total=expected.total)
        for done in maintenance.prune(retention, batch):
            bar.update(task, completed=done.total)
    return done


def _words(pruned: Pruned, kind: Kind) -> str:
    finished = "delivered" if kind == "source" else "completed"
    return f"{pruned.delivered} {finished} and {pruned.dead} dead events"
