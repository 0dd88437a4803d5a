"""`outspark reap`: give back claims whose relay, or worker of an inbox, is gone."""

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
    inbox: options.Inbox = None,
    url: options.Url = None,
    table: options.Table = None,
    contract: options.Contract = None,
) -> None:
    """Give back claims that ran out, because a relay or its machine is gone. A relay does this by itself too.

    In an inbox these are the locks of workers; one that is at work refreshes its own. Each counts as an attempt, so
    an event that kills whoever has it ends up dead instead of going round for ever.

    ```
    outspark reap
    outspark reap --lease-timeout 10m --json
    outspark reap --inbox billing
    ```
    """
    from outspark.cli.tables import open_table

    age = options.parse_duration(lease_timeout) if lease_timeout else None
    returned: list[str] = []
    dead: list[str] = []
    with open_table(config, source, inbox, url, table, contract) as opened:
        more = True
        while more:
            reaped = opened.maintenance.reap(age or opened.lease, opened.max_attempts, opened.reap_batch)
            returned += reaped.returned
            dead += reaped.dead
            more = len(reaped.returned) + len(reaped.dead) == opened.reap_batch
    if json:
        output.print_json({"returned": returned, "dead": dead})
    else:
        typer.echo(f"{len(returned)} given back, {len(dead)} dead")
