"""Flags that several commands share, each declared once, and the settings that they lead to."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from outspark.cli.commands import flag
from outspark.config import durations
from outspark.errors import SettingsError

if TYPE_CHECKING:
    from outspark.cli.tables import OpenTable
    from outspark.config.settings import Settings

Config = Annotated[
    Path | None,
    flag(
        "--config -c FILE",
        "Settings file; without it, outspark.toml in the working directory is read if it exists.",
    ),
]
Url = Annotated[str | None, flag("--url URL", "URL of the PostgreSQL database; overrides the settings.")]
Table = Annotated[str | None, flag("--table NAME", "Name of the table; overrides the settings.")]
Contract = Annotated[
    str | None,
    flag("--contract NAME", "Contract of the table, such as openoutbox; overrides the settings."),
]
Source = Annotated[
    str | None, flag("--source NAME", "The source that is meant, when the settings have several.")
]
Json = Annotated[bool, flag("--json", "Print one JSON object on stdout.")]
DryRun = Annotated[bool, flag("--dry-run", "Change nothing; print how many events the command would change.")]
Yes = Annotated[bool, flag("--yes -y", "Do not ask for confirmation.")]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """One source: that of the settings, or the one which the flags describe."""

    config: Config = None
    url: Url = None
    table: Table = None
    contract: Contract = None
    source: Source = None


@dataclass(frozen=True, slots=True)
class TableOptions(SourceOptions):
    """One source or inbox, for the commands that maintain its table."""

    inbox: Annotated[
        str | None,
        flag(
            "--inbox NAME",
            "An inbox of the settings, instead of a source; with --url, its name is that of the consumer group.",
        ),
    ] = None

    def open(self) -> AbstractContextManager[OpenTable]:
        """The named source or inbox; without a name the only source, or the only inbox if there is no source."""
        from outspark.cli.tables import open_table

        return open_table(self)

    def load(self) -> Settings:
        """The settings with these flags on top."""
        from outspark import contracts

        if self.source is not None and self.inbox is not None:
            raise SettingsError("--source and --inbox exclude each other: choose one")
        if self.inbox is not None and self.contract not in (None, inboxes := contracts.of_inboxes().name):
            raise SettingsError(
                f"--contract {self.contract!r} has no inbox; inboxes are of contract {inboxes}"
            )
        # An inbox has no setting of this name: one contract has all inboxes.
        return load_settings(**asdict(self) if self.inbox is None else asdict(replace(self, contract=None)))


@dataclass(frozen=True, slots=True)
class HostingOptions:
    """How a relay or an inbox runs as a process."""

    lanes: Annotated[
        int | None, flag("--lanes N", "How many lanes work in parallel; each inbox has as many.")
    ] = None
    master: Annotated[
        str | None, flag("--master URL", "URL of the Spark master; local unless the settings name another.")
    ] = None
    port: Annotated[
        int | None, flag("--port N", "Port of the health and metrics server; 0 picks a free port.")
    ] = None
    wait_for_database: Annotated[
        bool | None,
        flag(
            "--wait-for-database",
            "Wait also for a database that refuses the connection, instead of exiting with code 3.",
        ),
    ] = None
    log_level: Annotated[
        str | None, flag("--log-level LEVEL", "Lowest level that is logged: debug, info, warning or error.")
    ] = None
    log_format: Annotated[
        str | None, flag("--log-format text|json", "Format of log lines: text for people, json for machines.")
    ] = None

    def load(self, config: Path | None, source: str | None = None, **flags: Any) -> Settings:
        return load_settings(config, source, **asdict(self), **flags)


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
    """A flag that was not given is None. Flags of a table apply to the named source or inbox, or to the `only` one."""
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
