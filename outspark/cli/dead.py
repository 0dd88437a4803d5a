"""`outspark dead …`: list and show events that could not be delivered or handled, requeue them, or discard them."""

from __future__ import annotations

import json as jsonlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from outspark.cli import options, output
from outspark.cli.commands import command, commands, flag
from outspark.cli.exits import NoMatch

if TYPE_CHECKING:
    from outspark.cli.tables import OpenTable
    from outspark.contracts.maintenance import DeadEvent, DeadFilter

app = commands(
    "List and show events that could not be delivered, or in an inbox not handled; requeue or discard them."
)


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """Which dead events are meant, as it was typed."""

    type: Annotated[
        str | None, flag("--type PATTERN", "Only events of this type, such as order.created or order.*")
    ] = None
    key: Annotated[str | None, flag("--key KEY", "Only events with this key.")] = None
    error: Annotated[str | None, flag("--error TEXT", "Only events whose error contains this text.")] = None
    since: Annotated[
        str | None,
        flag(
            "--since WHEN",
            "Only events that died at this time or later: 2h (two hours ago) or 2026-03-01T12:00:00Z.",
        ),
    ] = None
    before: Annotated[
        str | None, flag("--before WHEN", "Only events that died before this time, written as for --since.")
    ] = None

    def filter(self, opened: OpenTable, ids: list[str] | None = None) -> DeadFilter:
        from outspark.contracts.maintenance import DeadFilter

        since, before = _time(opened, self.since), _time(opened, self.before)
        return DeadFilter(tuple(ids) if ids else None, self.type, self.key, self.error, since, before)


@dataclass(frozen=True, slots=True)
class ChangeOptions(FilterOptions):
    """Which dead events to change, and whether only to count them."""

    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Only the events with these ids.", show_default=False),
    ] = None
    all: Annotated[bool, flag("--all", "All dead events; required when no id and no filter is given.")] = (
        False
    )
    limit: Annotated[int | None, flag("--limit N", "Change at most this many events.", min=1)] = None
    dry_run: options.DryRun = False

    def require_choice(self) -> None:
        some = any((self.ids, self.type, self.key, self.error, self.since, self.before))
        if some and self.all:
            raise typer.BadParameter("--all and a choice exclude each other")
        if not some and not self.all:
            raise typer.BadParameter("say which events: ids, a filter, or --all")

    def up_to_limit(self, count: int) -> int:
        return count if self.limit is None else min(count, self.limit)


@command(app, "list")
def list_(
    *,
    chosen: FilterOptions,
    after: Annotated[
        str | None,
        flag("--after ID", "Only ids after this one, in the order of ids: one page after another."),
    ] = None,
    requeued: Annotated[
        bool, flag("--requeued", "List the events that wait for their resend instead; only on contract jeap.")
    ] = False,
    limit: Annotated[int, flag("--limit N", "List at most this many events.", min=1)] = 100,
    json: options.Json = False,
    target: options.TableOptions,
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
    with target.open() as opened:
        which = replace(chosen.filter(opened), after=after, requeued=requeued)
        total = opened.maintenance.count_dead(which)
        events = opened.maintenance.list_dead(which, limit)
    if json:
        output.print_json({"total": total, "events": [output.record(event) for event in events]})
        return
    output.print_table(("id", "type", "key", "attempts", "died", "error"), [_row(event) for event in events])
    if total > len(events):
        output.note(f"{len(events)} of {total} shown; see more with --limit")


@command(app)
def show(
    *,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of the event.")],
    payload: Annotated[bool, flag("--payload", "Write the payload alone to stdout, byte for byte.")] = False,
    json: options.Json = False,
    target: options.TableOptions,
) -> None:
    """Show one dead event: why it died, its headers, and with `--payload` its payload.

    ```
    outspark dead show 0198f3c2-…
    outspark dead show 0198f3c2-… --payload > payload.bin
    ```
    """
    with target.open() as opened:
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


@command(app)
def requeue(*, chosen: ChangeOptions, json: options.Json = False, target: options.TableOptions) -> None:
    """Make dead events pending again, at their old position in the order of their key. Their attempts start anew.

    ```
    outspark dead requeue 0198f3c2-…
    outspark dead requeue --error 'stream not found' --dry-run
    outspark dead requeue --all
    outspark dead requeue --inbox billing --error 'no such customer'
    ```
    """
    _change("requeued", chosen, json, target)


@command(app)
def discard(
    *,
    chosen: ChangeOptions,
    yes: options.Yes = False,
    json: options.Json = False,
    target: options.TableOptions,
) -> None:
    """Delete dead events permanently.

    The command asks for confirmation first; without a terminal to ask on, it needs `--yes`. An inbox forgets the ids
    of the events, too: if the broker delivers one of these messages again, the inbox accepts it as a new one.

    ```
    outspark dead discard --type 'test.*' --dry-run
    outspark dead discard 0198f3c2-… --yes
    ```
    """
    _change("discarded", chosen, json, target, yes=yes)


def _change(
    verb: Literal["requeued", "discarded"],
    chosen: ChangeOptions,
    json: bool,
    target: options.TableOptions,
    *,
    yes: bool = True,
) -> None:
    """Only counts the events in a dry run; otherwise changes them, after a confirmation unless `yes`."""
    chosen.require_choice()
    with target.open() as opened:
        maintenance, which = opened.maintenance, chosen.filter(opened, chosen.ids)
        if chosen.dry_run:
            _report_dry_run(verb, chosen.up_to_limit(maintenance.count_dead(which)), json)
            return
        if not yes and (count := chosen.up_to_limit(maintenance.count_dead(which))):
            output.confirm(f"Delete {count} dead events from {opened.table} for good?", yes=False)
        change = maintenance.requeue if verb == "requeued" else maintenance.discard
        _report(verb, change(which, chosen.limit), json)


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


def _report_dry_run(verb: str, count: int, json: bool) -> None:
    if json:
        output.print_json({verb: count, "dry_run": True})
    else:
        typer.echo(f"{count} would be {verb}")
