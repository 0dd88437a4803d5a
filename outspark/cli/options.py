"""Flags that several commands share, and the settings they lead to."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from outspark.config import durations

if TYPE_CHECKING:
    from outspark.config.settings import Settings

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="Settings file; otherwise outspark.toml if it is there."
    ),
]
Source = Annotated[
    str | None, typer.Option("--source", metavar="NAME", help="Which source, when the settings have several.")
]
Inbox = Annotated[
    str | None,
    typer.Option(
        "--inbox",
        metavar="NAME",
        help="An inbox of the settings instead of a source; with --url, the consumer group of this name there.",
    ),
]
Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="PostgreSQL URL, over the settings.")]
Table = Annotated[
    str | None, typer.Option("--table", metavar="NAME", help="Name of the table, over the settings.")
]
Contract = Annotated[
    str | None,
    typer.Option(
        "--contract",
        metavar="NAME",
        help="What the table means, such as openoutbox, over the settings.",
    ),
]
WaitForDatabase = Annotated[
    bool,
    typer.Option(
        "--wait-for-database",
        help="Wait also for a database that refuses us, instead of ending with exit code 3.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; say how many events it would be.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_KEYS = {
    "url": "source.url",
    "table": "source.table",
    "contract": "source.contract",
    "ordering": "source.ordering",
    "lease": "source.lease",
    "lanes": "hosting.lanes",
    "master": "hosting.master",
    "wait_for_database": "hosting.wait_for_database",
    "port": "server.port",
    "to": "to",
    "log_level": "log.level",
    "log_format": "log.format",
}


def load_settings(
    config: Path | None,
    source: str | None = None,
    inbox: str | None = None,
    *,
    only: Literal["source", "inbox"] = "source",
    **flags: Any,
) -> Settings:
    """Flags that were not given are None. Those of a table go to the named source or inbox, or to the `only` one."""
    from outspark.config.layers import Given
    from outspark.config.loading import load

    whose = f"sources.{source}" if source is not None else f"inboxes.{inbox}" if inbox is not None else only
    overrides: dict[str, Given] = {}
    for name, value in flags.items():
        if value is not None:
            section, _, key = _KEYS[name].partition(".")
            path = f"{whose}.{key}" if section == "source" else _KEYS[name]
            overrides[path] = Given(value, f"flag --{name.replace('_', '-')}")
    return load(config, os.environ, overrides)


def parse_duration(text: str) -> timedelta:
    try:
        return durations.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
