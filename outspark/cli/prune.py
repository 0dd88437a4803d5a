"""`outspark prune`: delete finished events past their retention."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from outspark.cli import options, output

if TYPE_CHECKING:
    from outspark.cli.tables import Kind
    from outspark.maintenance.operations import Maintenance, Pruned, Retention


def prune(
    delivered_age: Annotated[
        str | None,
        typer.Option(
            "--delivered-age",
            metavar="AGE",
            help="Delete events that were delivered longer ago than this; in an inbox, completed.",
        ),
    ] = None,
    dead_age: Annotated[
        str | None,
        typer.Option(
            "--dead-age",
            metavar="AGE",
            help="Delete dead events older than this; on jeap, all that are unsent.",
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=10_000, metavar="N", help="Events per transaction.")
    ] = 1000,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
    config: options.Config = None,
    source: options.Source = None,
    inbox: options.Inbox = None,
    url: options.Url = None,
    table: options.Table = None,
    contract: options.Contract = None,
) -> None:
    """Delete delivered and dead events past their age, in small batches that never block writers.

    Ages are a number with a unit: `30m`, `12h`, `7d`. What is not named is kept. On a terminal it says how
    many and asks first; in a script the ages are the answer.

    An inbox knows messages by their rows: one that is delivered again after it was pruned is handled again. So keep
    them longer than any broker would redeliver.

    ```
    outspark prune --delivered-age 7d --dead-age 30d --dry-run
    outspark prune --delivered-age 7d --yes
    outspark prune --inbox billing --delivered-age 30d
    ```
    """
    from outspark.cli.tables import open_table
    from outspark.maintenance.operations import Retention

    if delivered_age is None and dead_age is None:
        raise typer.BadParameter("nothing to do: give --delivered-age, --dead-age or both, such as 7d")
    retention = Retention(
        delivered=options.parse_duration(delivered_age) if delivered_age else None,
        dead=options.parse_duration(dead_age) if dead_age else None,
    )
    with open_table(config, source, inbox, url, table, contract) as opened:
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
