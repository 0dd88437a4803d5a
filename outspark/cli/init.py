"""`outspark init`: the table of an outbox or inbox, printed or created."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outspark.cli import options, output

if TYPE_CHECKING:
    from outspark.config.inbox import InboxSettings
    from outspark.config.settings import Settings, SourceSettings
    from outspark.contracts.contract import Contract
    from outspark.contracts.privileges import Need, Who
    from outspark.database.names import TableName

    Target = SourceSettings | InboxSettings

DEAD_LETTERS = "inbox_dead_letters"
_LETTERS_ONLY = (
    "--dead-letters is a table of its own, and goes with --table, --source, --url and --apply only"
)


def init(
    contract: Annotated[
        str | None,
        typer.Option(
            "--contract",
            metavar="NAME",
            help="What the table means, such as openoutbox; otherwise that of the source, or openoutbox.",
        ),
    ] = None,
    inbox: Annotated[
        bool, typer.Option("--inbox", help="An inbox instead of an outbox; its contract is omnibox.")
    ] = False,
    dead_letters: Annotated[
        bool,
        typer.Option("--dead-letters", help="Instead, the table for letters about dead events of an inbox."),
    ] = False,
    partitioned: Annotated[
        bool,
        typer.Option(
            "--partitioned",
            help="The table that is partitioned by created_at, on omnibox.",
        ),
    ] = False,
    table: Annotated[
        str | None, typer.Option("--table", metavar="NAME", help="Table name, with or without schema.")
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Run it on the source instead of printing it.")
    ] = False,
    doorbell: Annotated[
        bool,
        typer.Option(
            "--doorbell", help="Add the trigger that wakes a sleeping lane as soon as a writer commits."
        ),
    ] = False,
    lanes: Annotated[
        int | None,
        typer.Option(
            "--lanes", min=1, metavar="N", help="Lanes that the doorbell can wake; otherwise hosting.lanes."
        ),
    ] = None,
    ready_index: Annotated[
        bool,
        typer.Option(
            "--ready-index",
            help="Add Outspark's index, on contracts that have one, so that claims stay short however much was sent.",
        ),
    ] = False,
    grants: Annotated[
        str | None,
        typer.Option(
            "--grants", metavar="ROLE", help="Add what this role must be granted to relay and to write."
        ),
    ] = None,
    grants_for: Annotated[
        str | None,
        typer.Option("--grants-for", metavar="relay|writer", help="With --grants, only for one of the two."),
    ] = None,
    config: options.Config = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="NAME",
            help="Which source, or with --inbox which inbox, when the settings have several.",
        ),
    ] = None,
    url: options.Url = None,
) -> None:
    """Print the DDL of an outbox table, or of an inbox, or create it.

    Without `--apply` the SQL goes to stdout and nothing else does, so it can be piped or put into a
    migration. Running it again changes nothing, and `--apply` says what was created and what existed. The small
    tables that a relay keeps beside an outbox come along: who owns which slot, and where a route of the configuration
    has several destinations, which of them already have an event. Where a source or inbox of the
    settings has `partitions`, its table is partitioned; `outspark partitions keep` makes the first ones.

    ```
    outspark init > outbox.sql
    outspark init --table sales.outbox | psql "$DATABASE_URL"
    outspark init --apply --url postgresql://localhost/shop
    outspark init --apply --doorbell --lanes 4
    outspark init --grants relay_role --grants-for relay | psql "$DATABASE_URL"
    outspark init --contract jeap --ready-index | psql "$DATABASE_URL"
    outspark init --contract omnibox --inbox --partitioned
    outspark init --inbox --source billing --apply
    outspark init --dead-letters --table billing_letters | psql "$DATABASE_URL"
    ```
    """
    from outspark import contracts
    from outspark.contracts import privileges
    from outspark.database.doorbell import doorbell_ddl
    from outspark.database.names import TableName
    from outspark.database.shape import script

    whose = _whose(grants, grants_for)
    if dead_letters:
        if grants or inbox or partitioned or doorbell or ready_index or contract is not None:
            raise typer.BadParameter(_LETTERS_ONLY)
        _dead_letters(*_target(_load(config, source, url, None, True), source, apply, True), table, apply)
        return
    settings = _load(config, source, url, lanes, inbox)
    name, target = _target(settings, source, apply, inbox)
    called = contract or (contracts.of_inboxes().name if inbox else _contract_of(target))
    own = target if _is_inbox(target) == inbox and called == _contract_of(target) else None
    kept = own is not None and own.partitions is not None
    kind = _contract(called, inbox, partitioned or kept)
    if ready_index and kind.ready_index(TableName.parse(kind.default_table)) is None:
        raise _refusal("--ready-index", _with_ready_index())
    chosen = TableName.parse(table or _table_of(own, kind, unnamed=partitioned and not kept))
    bell = settings.hosting.lanes if doorbell else 0
    fan_out = target is not None and not inbox and settings.fans_out(name)
    ordered = not inbox and getattr(own, "ordering", "key") == "key"

    def beside(table: TableName) -> list[privileges.Need]:
        return privileges.side_needs(kind, table, ordered=ordered, fans_out=fan_out)

    def granted(table: TableName) -> list[str]:
        made = [
            statement
            for who in whose
            for statement in privileges.grants(kind, table, grants or "", who, beside(table), inbox=inbox)
        ]
        return list(dict.fromkeys(made))

    if target is not None and apply:
        _create(name, target, kind, chosen, bell, ready_index, beside, granted)
    else:
        parts = [kind.ddl(chosen), *(script([need.create]) for need in beside(chosen))]
        if ready_index:
            parts.append(f"{kind.ready_index(chosen)};\n")
        if bell:
            parts.append(doorbell_ddl(chosen, bell))
        if grants:
            parts.append("".join(f"{statement};\n" for statement in granted(chosen)))
        typer.echo("\n".join(parts), nl=False)


def _whose(role: str | None, only: str | None) -> list[Who]:
    if only is not None and (only not in ("relay", "writer") or role is None):
        raise typer.BadParameter("--grants-for is relay or writer, and goes with --grants ROLE")
    both: list[Who] = ["relay", "writer"]
    return [who for who in both if role is not None and only in (None, who)]


def _load(
    config: Path | None, source: str | None, url: str | None, lanes: int | None, of_inbox: bool
) -> Settings:
    if of_inbox:
        return options.load_settings(config, None, source, only="inbox", url=url, lanes=lanes)
    return options.load_settings(config, source, url=url, lanes=lanes)


def _contract(name: str, inbox: bool, partitioned: bool) -> Contract:
    from outspark import contracts

    contract, every = contracts.get(name), [one.settings for one in contracts.known()]
    if inbox and not contract.settings.inboxes:
        raise _refusal("--inbox", [one.name for one in every if one.inboxes])
    if partitioned and not contract.settings.partitions:
        raise _refusal("--partitioned", [one.name for one in every if one.partitions])
    return contract.variant(inbox=inbox, partitioned=partitioned)


def _with_ready_index() -> Iterator[str]:
    from outspark import contracts
    from outspark.database.names import TableName

    for contract in contracts.known():
        if contract.ready_index(TableName.parse(contract.default_table)) is not None:
            yield contract.name


def _refusal(flag: str, able: Iterable[str]) -> typer.BadParameter:
    return typer.BadParameter(f"{flag} is for --contract {' and '.join(able)}")


def _contract_of(target: Target | None) -> str:
    from outspark.config import contracts

    return contracts.DEFAULT if target is None else target.contract


def _table_of(own: Target | None, contract: Contract, *, unnamed: bool) -> str:
    """The table of the settings; `unnamed` where its default name would be that of a table of another kind."""
    if own is None:
        return contract.default_table
    plain = contract.variant(inbox=_is_inbox(own)).default_table
    return contract.default_table if unnamed and own.table == plain else own.table


def _is_inbox(target: Target | None) -> bool:
    from outspark.config.inbox import InboxSettings

    return isinstance(target, InboxSettings)


def _target(settings: Settings, name: str | None, apply: bool, of_inbox: bool) -> tuple[str, Target | None]:
    """Where to create it; printing needs no database. An inbox may be made in the database of a source."""
    from outspark.config.loading import pick_inbox, pick_source
    from outspark.errors import SettingsError

    among_inboxes = of_inbox and bool(settings.inboxes or not settings.sources)
    known = len(settings.inboxes if among_inboxes else settings.sources)
    if not apply and name is None and known != 1:
        return "", None
    if among_inboxes and name is None and known > 1:
        names = ", ".join(settings.inboxes)
        raise SettingsError(f"there are several inboxes; choose one with --source: {names}")
    return pick_inbox(settings, name) if among_inboxes else pick_source(settings, name)


def _dead_letters(name: str, target: Target | None, table: str | None, apply: bool) -> None:
    from outspark.cli.create import Maker
    from outspark.cli.tables import connect
    from outspark.database.names import TableName, resolve
    from outspark.database.shape import script
    from outspark.inbox import dead_letters

    settings = getattr(target, "dead_letter", None)
    chosen = TableName.parse(table or (settings and settings.table) or DEAD_LETTERS)
    statements = dead_letters.statements(chosen)
    if target is None or not apply:
        typer.echo(script(statements), nl=False)
        return
    with connect("inbox" if _is_inbox(target) else "source", name, target) as conn:
        with conn.transaction():
            maker = Maker(conn)
            for statement in statements:
                maker.run(statement)
        maker.tell(resolve(conn, chosen))


def _ignored(contract: Contract, target: Target) -> Collection[str]:
    """By the settings of a source whose table this may be."""
    from outspark.config.settings import SourceSettings

    return (
        contract.ignored(target)
        if isinstance(target, SourceSettings) and target.contract == contract.name
        else ()
    )


def _create(
    name: str,
    target: Target,
    contract: Contract,
    table: TableName,
    bell: int,
    ready_index: bool,
    beside: Callable[[TableName], list[Need]],
    granted: Callable[[TableName], list[str]],
) -> None:
    from outspark.cli.create import Maker
    from outspark.cli.tables import connect
    from outspark.database import doorbell
    from outspark.database.names import resolve

    with connect("inbox" if _is_inbox(target) else "source", name, target) as conn:
        with conn.transaction():
            maker = Maker(conn)
            ready = contract.ready_index(table) if ready_index else None
            for statement in [*contract.statements(table), *([ready] if ready else [])]:
                maker.run(statement)
            found = resolve(conn, table)
            for need in beside(found):
                maker.run(need.create)
            before = doorbell.installed_lanes(conn, found) if bell else 0
            for statement in doorbell.statements(found, bell) if bell else []:
                conn.execute(statement.encode())
            for statement in granted(found):
                conn.execute(statement.encode())
        maker.tell(found)
        if bell:
            output.note(f"doorbell for {bell} lanes {'exists' if before == bell else 'created'}")
        for statement in granted(found):
            output.note(statement)
        for finding in contract.check_table(conn, found, _ignored(contract, target)):
            output.note(f"{finding.level}: {finding}")
