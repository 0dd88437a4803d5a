"""`outspark unlock`: unlock events by force when their relay or worker is gone or stuck."""

from __future__ import annotations

from typing import Annotated

import typer

from outspark.cli import options, output
from outspark.cli.commands import flag
from outspark.cli.exits import NoMatch


def unlock(
    *,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="The ids of the events to unlock.")],
    reason: Annotated[
        str, flag("--reason TEXT", "Why you unlock them; each event keeps this text as its last_error.")
    ],
    json: options.Json = False,
    target: options.TableOptions,
) -> None:
    """Unlock events by force before their lock times out, in an inbox or in an outbox of contract omnibox.

    The events are due immediately, and no attempt is counted. First make sure that the relay or worker that locked them
    is gone or stuck: a relay that is still running sends the event a second time. A worker with the strategy
    exactly-once notices that its lock is gone and rolls back. Events that are not locked stay as they are, and the
    command does not list them. To give back all locks of a crashed machine, use `outspark reap --lease-timeout`.

    ```
    outspark unlock 0198f3c2-… --inbox billing --reason 'host b7 is gone'
    outspark unlock 0198f3c2-… 0198f3c3-… --source orders --reason 'relay hangs, OPS-12'
    ```
    """
    with target.open() as opened:
        unlocked = opened.maintenance.unlock(ids, reason)
    if json:
        output.print_json({"unlocked": len(unlocked), "ids": unlocked})
    else:
        for id in unlocked:
            typer.echo(id)
        output.note(f"{len(unlocked)} of {len(ids)} unlocked")
    if not unlocked:
        raise NoMatch(f"none of these events is locked in {opened.table}")
