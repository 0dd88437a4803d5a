"""`outspark reap`: give back claims whose relay is gone."""

from __future__ import annotations

from typing import Annotated

import typer

from outspark.cli import options, output


def reap(
    lease_timeout: Annotated[
        str | None,
        typer.Option(
            "--lease-timeout", metavar="AGE", help="How old a claim must be; otherwise the settings'."
        ),
    ] = None,
    json: options.Json = False,
    config: options.Config = None,
    source: options.Source = None,
    url: options.Url = None,
    table: options.Table = None,
    contract: options.Contract = None,
) -> None:
    """Give back claims that ran out, because a relay or its machine is gone. A relay does this by itself too.

    Each counts as an attempt, so an event that kills its relay ends up dead instead of going round for ever.

    ```
    outspark reap
    outspark reap --lease-timeout 10m --json
    ```
    """
    from outspark.cli.sources import open_source
    from outspark.loading import pick_source

    age = options.parse_duration(lease_timeout) if lease_timeout else None
    name, settings = pick_source(
        options.load_settings(config, source, url=url, table=table, contract=contract), source
    )
    returned: list[str] = []
    dead: list[str] = []
    with open_source(name, settings) as opened:
        more = True
        while more:
            reaped = opened.maintenance.reap(
                age or settings.lease_timeout, settings.retry.max_attempts, settings.reap_batch_size
            )
            returned += reaped.returned
            dead += reaped.dead
            more = len(reaped.returned) + len(reaped.dead) == settings.reap_batch_size
    if json:
        output.print_json({"returned": returned, "dead": dead})
    else:
        typer.echo(f"{len(returned)} given back, {len(dead)} dead")
