"""`outspark reap`: give back claims whose relay, or worker of an inbox, crashed or disconnected."""

from __future__ import annotations

from typing import Annotated

import typer

from outspark.cli import options, output
from outspark.cli.commands import flag


def reap(
    *,
    lease_timeout: Annotated[
        str | None,
        flag(
            "--lease-timeout AGE",
            "Give back claims that are older than this, instead of the age in the settings.",
        ),
    ] = None,
    json: options.Json = False,
    target: options.TableOptions,
) -> None:
    """Give back claims that timed out because their relay crashed or disconnected. A running relay does the same.

    In an inbox, the claims are the locks of workers; a running worker refreshes its own. The command counts an attempt
    for each event, so that an event which crashes every relay or worker ends up dead instead of being tried for ever.

    ```
    outspark reap
    outspark reap --lease-timeout 10m --json
    outspark reap --inbox billing
    ```
    """
    age = options.parse_duration(lease_timeout) if lease_timeout else None
    returned: list[str] = []
    dead: list[str] = []
    with target.open() as opened:
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
