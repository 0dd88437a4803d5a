"""`outspark dead …`: look at events that could not pass, give them another life, or let them go."""

from __future__ import annotations

import json as jsonlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from outspark.cli import options, output
from outspark.cli.exits import EPILOG, NoMatch

if TYPE_CHECKING:
    from outspark.cli.tables import OpenTable
    from outspark.contracts.maintenance import DeadEvent, DeadFilter

app = typer.Typer(
    help="Look at events that could not be delivered, or in an inbox not handled; give them another life, or let "
    "them go.",
    no_args_is_help=True,
    epilog=EPILOG,
    rich_markup_mode="markdown",
)

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Only these events.", show_default=False)
]
Type = Annotated[
    str | None,
    typer.Option("--type", metavar="PATTERN", help="Only event types such as order.created or order.*"),
]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only events of this key.")]
Error = Annotated[str | None, typer.Option("--error", metavar="TEXT", help="Only errors that contain this.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="WHEN", help="Died since: 2h (ago) or 2026-03-01T12:00:00Z.")
]
Before = Annotated[str | None, typer.Option("--before", metavar="WHEN", help="Died before: as for --since.")]
All = Annotated[bool, typer.Option("--all", help="All dead events; needed when nothing else says which.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="At most so many.")]


@app.command("list", epilog=EPILOG)
def list_(
    type: Type = None,
    key: Key = None,
    error: Error = None,
    since: Since = None,
    before: Before = None,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="ID", help="Only ids after this, in their order: page by page."),
    ] = None,
    requeued: Annotated[
        bool,
        typer.Option("--requeued", help="Instead, those that wait for their resend. Only on contract jeap."),
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most so many.")] = 100,
    json: options.Json = False,
    config: options.Config = None,
    source: options.Source = None,
    inbox: options.Inbox = None,
    url: options.Url = None,
    table: options.Table = None,
    contract: options.Contract = None,
) -> None:
    """List dead events, the latest first.

    ```
    outspark dead list
    outspark dead list --type 'order.*' --error 'too large' --since 2d
    outspark dead list --json | jq -r '.events[].id'
    outspark dead list --after 0198f3c2-… --limit 1000
    outspark dead list --inbox billing
    ```
    """
    from outspark.cli.tables import open_table

    with open_table(config, source, inbox, url, table, contract) as opened:
        which = _Wishes(None, type, key, error, since, before).filter(opened)
        which = replace(which, after=after, requeued=requeued)
        total = opened.maintenance.count_dead(which)
        events = opened.maintenance.list_dead(which, limit)
    if json:
        output.print_json({"total": total, "events": [output.record(event) for event in events]})
        return
    output.print_table(("id", "type", "key", "attempts", "died", "error"), [_row(event) for event in events])
    if total > len(events):
        output.note(f"{len(events)} of {total} shown; see more with --limit")


@app.command(epilog=EPILOG)
def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="The event's id.")],
    payload: Annotated[bool, typer.Option("--payload", help="Write the bare payload to stdout.")] = False,
    json: options.Json = False,
    config: options.Config = None,
    source: options.Source = None,
    inbox: options.Inbox = None,
    url: options.Url = None,
    table: options.Table = None,
    contract: options.Contract = None,
) -> None:
    """Show one dead event: why it died, its headers, and on demand its payload.

    ```
    outspark dead show 0198f3c2-…
    outspark dead show 0198f3c2-… --payload > payload.bin
    ```
    """
    from outspark.cli.tables import open_table

    with open_table(config, source, inbox, url, table, contract) as opened:
        event = opened.maintenance.show_dead(id)
    if event is None:
        raise NoMatch(f"there is no dead event {id} in {opened.table}")
    if payload:
        typer.echo(event.payload, nl=False)
    elif json:
        output.print_json(output.record(event))
    else:
        for name, value in output.record(event).items():
            typer.echo(f"{name:<13} {value if isinstance(value, str) else jsonlib.dumps(value)}")


@app.command(epilog=EPILOG)
def requeue(
    ids: Ids = None,
    type: Type = None,
    key: Key = None,
    error: Error = None,
    since: Since = None,
    before: Before = None,
    all: All = False,
    limit: Limit = None,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    config: options.Config = None,
    source: options.Source = None,
    inbox: options.Inbox = None,
    url: options.Url = None,
    table: options.Table = None,
    contract: options.Contract = None,
) -> None:
    """Give dead events another life, with all their attempts, at their old place in their key's order.

    ```
    outspark dead requeue 0198f3c2-…
    outspark dead requeue --error 'stream not found' --dry-run
    outspark dead requeue --all
    outspark dead requeue --inbox billing --error 'no such customer'
    ```
    """
    from outspark.cli.tables import open_table

    wishes = _Wishes(ids, type, key, error, since, before)
    wishes.require_some(all)
    with open_table(config, source, inbox, url, table, contract) as opened:
        which = wishes.filter(opened)
        if dry_run:
            _report_dry_run("requeued", opened.maintenance.count_dead(which), limit, json)
        else:
            _report("requeued", opened.maintenance.requeue(which, limit), json)


@app.command(epilog=EPILOG)
def discard(
    ids: Ids = None,
    type: Type = None,
    key: Key = None,
    error: Error = None,
    since: Since = None,
    before: Before = None,
    all: All = False,
    limit: Limit = None,
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
    """Delete dead events for good. Asks first; where nobody can answer, `--yes` is needed.

    From an inbox their ids go too: the same message, if it is delivered again, is a new one.

    ```
    outspark dead discard --type 'test.*' --dry-run
    outspark dead discard 0198f3c2-… --yes
    ```
    """
    from outspark.cli.tables import open_table

    wishes = _Wishes(ids, type, key, error, since, before)
    wishes.require_some(all)
    with open_table(config, source, inbox, url, table, contract) as opened:
        which = wishes.filter(opened)
        count = opened.maintenance.count_dead(which)
        if dry_run:
            _report_dry_run("discarded", count, limit, json)
            return
        if count:
            amount = count if limit is None else min(count, limit)
            output.confirm(f"Delete {amount} dead events from {opened.table} for good?", yes=yes)
        _report("discarded", opened.maintenance.discard(which, limit), json)


@dataclass(frozen=True, slots=True)
class _Wishes:
    """The flags that say which events are meant, as they were typed."""

    ids: list[str] | None
    type: str | None
    key: str | None
    error: str | None
    since: str | None
    before: str | None

    def require_some(self, all: bool) -> None:
        some = any((self.ids, self.type, self.key, self.error, self.since, self.before))
        if some == all:
            problem = (
                "--all and a choice exclude each other"
                if some
                else "say which events: ids, a filter, or --all"
            )
            raise typer.BadParameter(problem)

    def filter(self, opened: OpenTable) -> DeadFilter:
        from outspark.contracts.maintenance import DeadFilter

        ids = tuple(self.ids) if self.ids else None
        since, before = _time(opened, self.since), _time(opened, self.before)
        return DeadFilter(ids, self.type, self.key, self.error, since, before)


def _time(opened: OpenTable, text: str | None) -> datetime | None:
    """`2h` is two hours ago on the database's clock; a time without a zone is taken as UTC."""
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return opened.table_maintenance.now(opened.conn) - options.parse_duration(text)
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _row(event: DeadEvent) -> list[str]:
    died = event.died_at.isoformat(sep=" ", timespec="seconds")
    return [event.id, event.type, event.key or "-", str(event.attempts), died, event.error or "-"]


def _report(verb: str, ids: list[str], json: bool) -> None:
    if json:
        output.print_json({verb: len(ids), "ids": ids, "dry_run": False})
    else:
        for id in ids:
            typer.echo(id)
        output.note(f"{len(ids)} {verb}")
    if not ids:
        raise NoMatch("no dead event matched")


def _report_dry_run(verb: str, count: int, limit: int | None, json: bool) -> None:
    count = count if limit is None else min(count, limit)
    if json:
        output.print_json({verb: count, "dry_run": True})
    else:
        typer.echo(f"{count} would be {verb}")
