"""The program `outspark`: its commands, and how their errors end it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from outspark.cli import (
    dead,
    enqueue,
    exits,
    inbox,
    init,
    partitions,
    prune,
    reap,
    relay,
    stats,
    tools,
    unlock,
    version,
)
from outspark.cli.commands import command

app = typer.Typer(
    name="outspark",
    help="Delivers the events of an outbox table in PostgreSQL to a broker, on Spark: "
    "at least once, in order per key.",
    epilog=exits.EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_debug = False


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    global _debug
    _debug = debug


for _name, _command in (
    ("init", init.init),
    ("relay", relay.relay),
    ("enqueue", enqueue.enqueue),
    ("stats", stats.stats),
    ("prune", prune.prune),
    ("reap", reap.reap),
    ("unlock", unlock.unlock),
    ("version", version.version),
):
    command(app, _name)(_command)
app.add_typer(dead.app, name="dead")
app.add_typer(partitions.app, name="partitions")
app.add_typer(inbox.app, name="inbox")
tools.register(app)


def main() -> None:
    try:
        app(prog_name="outspark")
    except Exception as error:
        if _debug or not exits.expected(error):
            raise
        from outspark.redaction import redact

        typer.echo(f"error: {redact(str(error)).strip()}", err=True)
        sys.exit(exits.code(error))
