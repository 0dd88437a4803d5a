"""What commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import typer

from outspark.config import durations
from outspark.errors import SettingsError

if TYPE_CHECKING:
    from rich.progress import Progress


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False, default=str))


def note(text: str) -> None:
    typer.echo(text, err=True)


def record(item: Any) -> dict[str, Any]:
    """A dataclass as plain JSON: durations as `…_seconds`, times in ISO 8601, payloads left out."""
    plain: dict[str, Any] = {}
    for field in fields(item):
        name, value = field.name, getattr(item, field.name)
        if "timedelta" in str(field.type):
            plain[f"{name}_seconds"] = None if value is None else round(value.total_seconds(), 3)
        elif isinstance(value, datetime):
            plain[name] = value.isoformat()
        elif not isinstance(value, bytes):
            plain[name] = value
    return plain


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Aligned columns without a frame; a cell may have any length when the output is not a terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False, markup=False)
    console.print(table)


def age(value: timedelta | None) -> str:
    """`2h5m`: an age for people, in whole seconds from ten seconds on."""
    if value is None:
        return "-"
    if value >= timedelta(seconds=10):
        value = timedelta(seconds=round(value.total_seconds()))
    return durations.text(value)


def progress() -> Progress:
    """A progress bar on stderr, which stays silent when stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def confirm(question: str, *, yes: bool) -> None:
    """Asks on the terminal; without a terminal, `--yes` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise SettingsError(
            f"{question} There is no terminal to ask on: repeat with --yes, or preview with --dry-run"
        )
    typer.confirm(question, abort=True, err=True)
