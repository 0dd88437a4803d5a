"""Commands of the workshop, each in a module `outspark.tools.<part>.command` that may not be installed.

The module has a function `main(args: list[str]) -> int`, and prints its own `--help`.
"""

from __future__ import annotations

import importlib

import typer

from outspark.errors import OutsparkError

_PARTS = {
    "bench": "Measure the relay and the inbox, and compare them with the most that the database can do.",
    "demo": "Watch orders go through relay, broker and inbox while lanes are killed, and see that each is billed once.",
}


def register(app: typer.Typer) -> None:
    for part, help in _PARTS.items():
        # The part parses its own flags, --help included.
        passing = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
        app.command(part, help=help, context_settings=passing)(_forward)


def _forward(ctx: typer.Context) -> None:
    module = f"outspark.tools.{ctx.info_name}.command"
    try:
        command = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise OutsparkError(
            f"{ctx.info_name} is not part of this installation: {module} is missing"
        ) from error
    raise typer.Exit(command.main(ctx.args))
