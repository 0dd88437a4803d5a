"""`outspark demo`: its flags, its exit codes, and what it prints in the end."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from outspark.demo.interruptions import Interrupted, Interruptions
from outspark.errors import ExtraMissing, OutsparkError

if TYPE_CHECKING:
    from outspark.demo.play import Plan

BROKERS = ("nats",)
NEEDED = ("nats", "pyspark", "pandas", "pyarrow", "starlette", "uvicorn", "prometheus_client")

INTRODUCTION = """
 A shop writes orders and their events into PostgreSQL, both in one transaction.
 A relay on Spark delivers the events to NATS, where a consumer counts them.
"""
EPILOG = (
    "Exit codes: **0** the proof holds, **1** it does not, or the relay failed, **2** a flag is wrong or a "
    "package is missing, **130** interrupted."
)


def main(args: list[str]) -> int:
    """The exit code. A wrong flag is a click error, and another failure an OutsparkError, for the caller to show."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command(epilog=EPILOG)(demo)
    return int(typer.main.get_command(app).main(args, prog_name="outspark demo", standalone_mode=False) or 0)


def _broker(name: str) -> str:
    if name not in BROKERS:
        raise typer.BadParameter(f"{name!r} is not supported; allowed: {', '.join(BROKERS)}")
    return name


def demo(
    broker: Annotated[
        str, typer.Option("--broker", metavar="NAME", callback=_broker, help="Where events go: nats.")
    ] = "nats",
    seconds: Annotated[
        int, typer.Option("--seconds", metavar="N", min=3, max=3600, help="How long the shop writes.")
    ] = 20,
    rate: Annotated[
        int, typer.Option("--rate", metavar="N", min=10, max=5000, help="Events per second.")
    ] = 400,
    kill: Annotated[
        bool, typer.Option("--kill/--no-kill", help="Kill a lane's process in the middle of its work.")
    ] = True,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running until Ctrl-C, and say where.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the proof as one JSON object on stdout.")
    ] = False,
) -> int:
    """See it work: a little shop writes orders and events, a relay on Spark delivers them to a broker, a consumer
    counts, and one lane is killed on the way. In the end both sides are compared, event by event.

    PostgreSQL, the broker and Spark are started for it and are gone afterwards.

    ```
    outspark demo
    outspark demo --seconds 60 --rate 1000
    outspark demo --keep
    outspark demo --json 2>/dev/null | jq .holds
    ```
    """
    if any(find_spec(package) is None for package in NEEDED):
        raise ExtraMissing("the demo", "all")
    from outspark.demo.play import Plan

    try:
        with Interruptions() as interruptions:
            plan = Plan(seconds=seconds, rate=rate, kill=kill, keep=keep)
            return _run(plan, interruptions, as_json=json)
    except Interrupted as interrupted:
        typer.echo("interrupted; everything is stopped and removed", err=True)
        return 128 + interrupted.number


def _run(plan: Plan, interruptions: Interruptions, *, as_json: bool) -> int:
    from rich.console import Console

    from outspark.demo import verdict
    from outspark.demo.play import play
    from outspark.demo.stage import Stage
    from outspark.demo.view import open_screen

    console = Console(stderr=True)
    console.print(INTRODUCTION, highlight=False)
    screen = open_screen(console)
    with ExitStack() as stack:
        with interruptions.held():
            stage = stack.enter_context(Stage(screen))
        try:
            with screen:
                report = play(stage, plan, screen)
        except OutsparkError as error:
            log = stage.relay.save_log()
            raise OutsparkError(f"{error}; its log is {log} and ends with:\n{stage.relay.tail()}") from error
        verdict.show(report, as_json=as_json)
        if not report.holds:
            typer.echo(f"the relay's log is {stage.relay.save_log()}", err=True)
        if plan.keep:
            typer.echo(verdict.addresses(stage), err=True)
            with suppress(Interrupted):
                threading.Event().wait()
            typer.echo("\n stopping", err=True)
    return 0 if report.holds else 1
