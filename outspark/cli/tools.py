"""Commands that live in a part of their own, `outspark.tools.<part>.command`, which may not be installed.

Such a module has `main(args: list[str]) -> int`, and its own `--help`.
"""

from __future__ import annotations

import importlib

import typer

from outspark.errors import OutsparkError

_PARTS = {
    "bench": "Measure relay and inbox beside the most that the database can do.",
    "demo": "See it work: orders, relay, broker, inbox and bills; lanes killed; proof that each order is billed once.",
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
