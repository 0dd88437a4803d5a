"""`outspark relay`: run the relay on Spark until it is stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from outspark.cli import options


def relay(
    config: options.Config = None,
    source: options.Source = None,
    url: options.Url = None,
    table: options.Table = None,
    contract: options.Contract = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="Send everything to kafka://, nats://, amqp://, redis:// or https:// and a host, to stdout or null.",
        ),
    ] = None,
    lanes: Annotated[
        int | None, typer.Option("--lanes", metavar="N", help="Loops that work side by side.")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="URL", help="Spark master; local unless the settings say else."),
    ] = None,
    ordering: Annotated[
        str | None,
        typer.Option("--ordering", metavar="key|none", help="In order per key, or relays that compete."),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option("--lease", metavar="row|slot", help="Claims marked in the rows, or by slot only."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", help="Port of health and metrics; 0 picks a free one."),
    ] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End with exit code 0 once nothing is pending any more.")
    ] = False,
    wait_for_database: options.WaitForDatabase = False,
    log_level: Annotated[
        str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option("--log-format", metavar="text|json", help="Lines for people or for machines."),
    ] = None,
) -> None:
    """Deliver events until stopped.

    Ctrl-C or SIGTERM finishes the batches in flight and gives the slots back; a second one ends at once.
    Settings come from a file, the environment on top of it, and these flags on top of both. The environment
    of an Open Outbox Relay (STORAGE_URL, PUBLISHER_TYPE, …) works as it is.

    ```
    outspark relay --url postgresql://localhost/shop --to stdout
    outspark relay --config outspark.toml --lanes 4
    outspark relay --to nats://localhost:4222 --until-empty
    STORAGE_URL=postgres://db/shop PUBLISHER_TYPE=nats PUBLISHER_URL=nats://bus:4222 outspark relay
    ```
    """
    settings = options.load_settings(
        config,
        source,
        url=url,
        table=table,
        contract=contract,
        to=to,
        lanes=lanes,
        master=master,
        ordering=ordering,
        lease=lease,
        port=port,
        wait_for_database=wait_for_database or None,
        log_level=log_level,
        log_format=log_format,
    )
    from outspark.config.extras import require_for_relay

    require_for_relay(settings)
    from outspark.runner import run

    raise typer.Exit(run(settings, until_empty=until_empty))
