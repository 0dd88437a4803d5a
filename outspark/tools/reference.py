"""`python -m outspark.tools.reference` writes docs/reference and docs/api.md from the code; `--check` only compares.

A test fails when the two drift apart.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from outspark.cli.app import app
from outspark.config import contracts, describe, durations, environment, fields, inbox, settings
from outspark.config.fields import DeadGuardSettings, RetrySettings
from outspark.config.layers import text
from outspark.observability.metrics import METRICS, Metric
from outspark.tools.api_reference import api_page

FOLDER = Path(__file__).parents[2] / "docs"
_GENERATED = "<!-- Written by `python -m outspark.tools.reference`; change the code, not this page. -->"
_SECTIONS: dict[str, type[BaseModel]] = {
    "hosting": settings.HostingSettings,
    "relay": settings.RelaySettings,
    "server": settings.ServerSettings,
    "log": settings.LogSettings,
    "sources.NAME": settings.SourceSettings,
    "sources.NAME.retry": RetrySettings,
    "sources.NAME.dead_guard": DeadGuardSettings,
    **{
        f"sources.NAME.{name}": contract.section
        for name, contract in contracts.known().items()
        if contract.section is not None
    },
    "destinations.NAME": settings.DestinationSettings,
    "destinations.NAME.claim_check": settings.ClaimCheckSettings,
    "[routes]": settings.RouteSettings,
    "inboxes.NAME": inbox.InboxSettings,
    "inboxes.NAME.feed": inbox.FeedSettings,
    "inboxes.NAME.work": inbox.HandlingSettings,
    "inboxes.NAME.work.retry": RetrySettings,
    "inboxes.NAME.work.dead_guard": inbox.DeadGuardSettings,
    "inboxes.NAME.dead_letter": inbox.DeadLetterSettings,
    "inboxes.NAME.partitions": fields.PartitionSettings,
}


def pages() -> dict[str, str]:
    """Path below docs to text."""
    return {
        "api.md": api_page(),
        "reference/settings.md": settings_page(),
        "reference/cli.md": cli_page(),
        "reference/metrics.md": metrics_page(),
    }


def settings_page() -> str:
    parts = [
        "# Settings",
        _GENERATED,
        "How files, the environment and flags come together is in [configuration](../configuration.md).",
    ]
    for name, model in _SECTIONS.items():
        fields = describe.fields_of(model).items()
        rows = [_setting(key, field) for key, field in fields if f"{name}.{key}" not in _SECTIONS]
        heading = f"## `[{name}]`" + (f"\n\n{model.__doc__.strip()}" if model.__doc__ else "")
        parts.append(f"{heading}\n\n{_table(['key', 'allowed', 'default', 'meaning'], rows)}")
    parts.append(
        "## Contracts\n\n" + _table(["contract", "default of `table`", "other defaults"], _contracts())
    )
    parts.append(_environment())
    return "\n\n".join(parts) + "\n"


def cli_page() -> str:
    parts = ["# Commands", _GENERATED]
    for path, command in command_tree():
        context = typer.Context(command, info_name=path[-1])
        records = [param.get_help_record(context) for param in command.get_params(context)]
        rows = [
            [f"`{record[0]}`", record[1]]
            for record in records
            if record and record[1] and "--help" not in record[0]
        ]
        parts.append(f"{'#' * (1 + len(path))} `{' '.join(path)}`\n\n{(command.help or '').strip()}")
        if not hasattr(command, "commands"):
            parts.append(_table(["flag", "meaning"], rows) if rows else "Its flags: `--help`.")
        if path == ("outspark",):
            parts.append(command.epilog or "")
    return "\n\n".join(parts) + "\n"


def metrics_page() -> str:
    rows = [_metric(metric) for metric in METRICS.values()]
    columns = ["Prometheus", "OpenTelemetry", "kind", "labels", "meaning"]
    return "\n\n".join(["# Metrics", _GENERATED, _table(columns, rows)]) + "\n"


def command_tree() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that lead to it, `("outspark", "dead", "list")` among them."""
    yield from _walk(("outspark",), typer.main.get_command(app))


def main(arguments: list[str]) -> int:
    drifted = [name for name, page in pages().items() if _stored(name) != page]
    if "--check" in arguments:
        for name in drifted:
            print(
                f"docs/{name} is out of date; run: python -m outspark.tools.reference",
                file=sys.stderr,
            )
        return 1 if drifted else 0
    (FOLDER / "reference").mkdir(parents=True, exist_ok=True)
    for name, page in pages().items():
        (FOLDER / name).write_text(page, encoding="utf-8")
    return 0


def _stored(name: str) -> str | None:
    path = FOLDER / name
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _walk(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _walk((*path, name), child)


def _setting(key: str, field: FieldInfo) -> list[str]:
    return [f"`{key}`", describe.words(field), _default(field), field.description or ""]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    if field.default is PydanticUndefined:
        return "the host's name" if field.default_factory is socket.gethostname else "none"
    value = field.default
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return ", ".join(f"`{one}`" for one in value) or "none"
    return f"`{durations.text(value)}`" if isinstance(value, timedelta) else f"`{value}`"


def _environment() -> str:
    """The variables of an Open Outbox Relay: those that always count, then those of one publisher type each."""
    columns = ["variable", "sets", "default"]
    parts = ["## Environment of an Open Outbox Relay", _table(columns, _variables())]
    for type, variables in environment.OF_PUBLISHER.items():
        rows = [_variable(name, f"`{text(path)}`") for name, path in variables.items()]
        parts.append(f"### With `PUBLISHER_TYPE={type}`\n\n{_table(columns, rows)}")
    return "\n\n".join(parts)


def _contracts() -> list[list[str]]:
    return [
        [
            f"`{name}`",
            f"`{contract.default_table}`",
            ", ".join(f'`{key} = "{value}"`' for key, value in contract.defaults.items()),
        ]
        for name, contract in contracts.known().items()
    ]


def _variables() -> list[list[str]]:
    special = {
        "PUBLISHER_URL": f"`{text(('destinations', 'default', 'url'))}`",
        "SERVER_PORT": "`server.port`, and `server.host` if it has an address",
        "ENVIRONMENT": "`development` sets `log.level` to `debug`",
    }
    plain = {name: f"`{text(path)}`" for name, path in environment.OPEN_OUTBOX.items()}
    return [_variable(name, meaning) for name, meaning in (plain | special).items()]


def _variable(name: str, meaning: str) -> list[str]:
    """The defaults count where the variables name a table."""
    return [f"`{name}`", meaning, f"`{environment.DEFAULTS[name]}`" if name in environment.DEFAULTS else ""]


def _metric(metric: Metric) -> list[str]:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return [f"`{metric.prometheus_name}`", f"`{metric.name}`", metric.kind, labels, metric.help]


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
