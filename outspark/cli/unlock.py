"""`outspark unlock`: take events out of the hands of somebody who is gone or stuck."""

from __future__ import annotations

from typing import Annotated

import typer

from outspark.cli import options, output
from outspark.cli.exits import NoMatch


def unlock(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="The events to unlock.")],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with each event, as last_error.")
    ],
    json: options.Json = False,
    config: options.Config = None,
    source: options.Source = None,
    inbox: options.Inbox = None,
    url: options.Url = None,
    table: options.Table = None,
    contract: options.Contract = None,
) -> None:
    """Unlock events by force, before their lock runs out: for an inbox, or an outbox of contract omnibox.

    They are free for the next one at once, and no attempt is counted. Be sure that whoever has them is gone or
    stuck: a relay that is still at it sends them twice. A worker whose strategy is exactly-once finds its lock
    gone and rolls back. What is not locked stays as it is, and is not answered. Locks of a whole machine that is
    gone are given back by `outspark reap --lease-timeout`.

    ```
    outspark unlock 0198f3c2-… --inbox billing --reason 'host b7 is gone'
    outspark unlock 0198f3c2-… 0198f3c3-… --source orders --reason 'relay hangs, OPS-12'
    ```
    """
    from outspark.cli.tables import open_table

    with open_table(config, source, inbox, url, table, contract) as opened:
        unlocked = opened.maintenance.unlock(ids, reason)
    if json:
        output.print_json({"unlocked": len(unlocked), "ids": unlocked})
    else:
        for id in unlocked:
            typer.echo(id)
        output.note(f"{len(unlocked)} of {len(ids)} unlocked")
    if not unlocked:
        raise NoMatch(f"none of these events is locked in {opened.table}")
