"""`outspark relay`: run the relay on Spark until it is stopped."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from outspark.cli import options
from outspark.cli.commands import flag


def relay(
    *,
    source: options.SourceOptions,
    to: Annotated[
        str | None,
        flag(
            "--to WHERE",
            "Send all events to one place: stdout, null, or a URL with kafka://, nats://, amqp://, redis:// or https://.",
        ),
    ] = None,
    ordering: Annotated[
        str | None,
        flag("--ordering key|none", "key: in order per key. none: relays compete for single events."),
    ] = None,
    lease: Annotated[
        str | None,
        flag(
            "--lease row|slot",
            "row: a claim marks its rows. slot: the relay owns slots, and writes only outcomes.",
        ),
    ] = None,
    until_empty: Annotated[
        bool, flag("--until-empty", "Exit with code 0 once all that is pending is scheduled for later.")
    ] = False,
    hosting: options.HostingOptions,
) -> None:
    """Deliver events until stopped.

    Ctrl-C or SIGTERM makes the relay finish the batches in flight and release its slots; a second signal makes it exit
    immediately. Settings come from a file; environment variables override the file, and these flags override both. The
    environment of an Open Outbox Relay (STORAGE_URL, PUBLISHER_TYPE, …) works as it is.

    ```
    outspark relay --url postgresql://localhost/shop --to stdout
    outspark relay --config outspark.toml --lanes 4
    outspark relay --to nats://localhost:4222 --until-empty
    STORAGE_URL=postgres://db/shop PUBLISHER_TYPE=nats PUBLISHER_URL=nats://bus:4222 outspark relay
    ```
    """
    from outspark.config.extras import require_for_relay

    settings = hosting.load(**asdict(source), to=to, ordering=ordering, lease=lease)
    require_for_relay(settings)
    from outspark.runner import run

    raise typer.Exit(run(settings, until_empty=until_empty))
