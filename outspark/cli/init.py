"""`outspark init`: the outbox table, printed or created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from outspark.cli import options, output

if TYPE_CHECKING:
    from outspark.contracts.contract import Contract
    from outspark.contracts.names import TableName
    from outspark.settings import Settings, SourceSettings


def init(
    contract: Annotated[
        str | None,
        typer.Option(
            "--contract",
            metavar="NAME",
            help="What the table means: openoutbox or jeap; otherwise that of the source, or openoutbox.",
        ),
    ] = None,
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
            "--lanes", min=1, metavar="N", help="Lanes that the doorbell can wake; otherwise relay.lanes."
        ),
    ] = None,
    ready_index: Annotated[
        bool,
        typer.Option(
            "--ready-index",
            help="On jeap, add an index of ours, so that looks stay short however many messages were sent.",
        ),
    ] = False,
    config: options.Config = None,
    source: options.Source = None,
    url: options.Url = None,
) -> None:
    """Print the DDL of an outbox table, or create it.

    Without `--apply` the SQL goes to stdout and nothing else does, so it can be piped or put into a
    migration. Running it again changes nothing. Where a route of the configuration has several destinations,
    the small table that remembers which of them already have an event comes along.

    ```
    outspark init > outbox.sql
    outspark init --table sales.outbox | psql "$DATABASE_URL"
    outspark init --apply --url postgresql://localhost/shop
    outspark init --apply --doorbell --lanes 4
    outspark init --contract jeap --ready-index | psql "$DATABASE_URL"
    ```
    """
    from outspark.contracts import deliveries
    from outspark.contracts.doorbell import doorbell_ddl
    from outspark.contracts.jeap import table as jeap
    from outspark.contracts.names import TableName

    settings = options.load_settings(config, source, url=url, lanes=lanes)
    name, target = _target(settings, source, apply)
    kind = _contract(contract or (target.contract if target else "openoutbox"))
    if ready_index and kind.name != "jeap":
        raise typer.BadParameter("--ready-index is for --contract jeap")
    same = target is not None and target.contract == kind.name
    chosen = TableName.parse(table or (target.table if target and same else kind.default_table))
    bell = settings.relay.lanes if doorbell else 0
    fan_out = target is not None and settings.fans_out(name)
    if target is not None and apply:
        _create(name, target, kind, chosen, bell, fan_out, ready_index)
    else:
        parts = [kind.ddl(chosen)]
        if ready_index:
            parts.append(f"{jeap.ready_index(chosen)};\n")
        if fan_out:
            parts.append(f"{deliveries.compose(deliveries.CREATE, chosen)};\n")
        if bell:
            parts.append(doorbell_ddl(chosen, bell))
        typer.echo("\n".join(parts), nl=False)


def _contract(name: str) -> Contract:
    from outspark import contracts
    from outspark.errors import SettingsError

    try:
        return contracts.get(name)
    except KeyError:
        raise SettingsError(f"--contract {name!r} is unknown; known are: openoutbox, jeap") from None


def _target(settings: Settings, source: str | None, apply: bool) -> tuple[str, SourceSettings | None]:
    """Printing needs no source; creating does."""
    from outspark.loading import pick_source

    if not apply and source is None and len(settings.sources) != 1:
        return "", None
    return pick_source(settings, source)


def _create(
    name: str,
    target: SourceSettings,
    contract: Contract,
    table: TableName,
    bell: int,
    fan_out: bool,
    ready_index: bool,
) -> None:
    from outspark.cli.sources import connect
    from outspark.contracts import deliveries, doorbell
    from outspark.contracts.jeap import table as jeap
    from outspark.contracts.names import resolve

    with connect(name, target) as conn:
        with conn.transaction():
            for statement in [
                *contract.statements(table),
                *([jeap.ready_index(table)] if ready_index else []),
            ]:
                conn.execute(statement.encode())
            found = resolve(conn, table)
            if fan_out:
                conn.execute(deliveries.compose(deliveries.CREATE, found).encode())
            for statement in doorbell.statements(found, bell) if bell else []:
                conn.execute(statement.encode())
        output.note(f"table {found} is there" + (f", with a doorbell for {bell} lanes" if bell else ""))
        if fan_out:
            output.note(
                f"table {deliveries.deliveries_table(found)} is there, for events to several destinations"
            )
        for finding in contract.check_table(conn, found):
            output.note(f"{finding.level}: {finding}")
