"""`outspark version`."""

from __future__ import annotations

import platform
from importlib import metadata

import typer

from outspark.cli import options, output
from outspark.version import __version__

_PARTS = ("psycopg", "pyspark", "nats-py")


def version(json: options.Json = False) -> None:
    """Print Outspark's version; with `--json` also those of Python and of the main packages.

    ```
    outspark version
    outspark version --json
    ```
    """
    if json:
        parts = {part: _installed(part) for part in _PARTS}
        output.print_json({"outspark": __version__, "python": platform.python_version(), **parts})
    else:
        typer.echo(f"outspark {__version__}")


def _installed(part: str) -> str | None:
    try:
        return metadata.version(part)
    except metadata.PackageNotFoundError:
        return None
