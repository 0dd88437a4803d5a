"""`outspark demo`: its flags, its exit codes, and what it prints in the end."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from outspark.errors import ExtraMissing, OutsparkError, ServerStartError, SettingsError
from outspark.tools.brokers import NAMES, Broker, BrokerName, open_broker
from outspark.tools.demo.signals import Interrupted, Interruptions

if TYPE_CHECKING:
    from rich.console import Console

    from outspark.tools.demo.scenario import Plan

NEEDED = ("pyspark", "pandas", "pyarrow", "starlette", "uvicorn", "prometheus_client", "psutil")

INTRODUCTION = """
 A shop writes orders and their events into PostgreSQL, both in one transaction.
 A relay on Spark delivers the events to {broker}, where a consumer counts them.
"""
BILLING = """\
 A billing service consumes them through its inbox, also on Spark, and writes a bill for each order.
"""
EPILOG = (
    "Exit codes: **0** the proof holds, **1** it does not, or an application failed, **2** a flag is wrong, or a "
    "package or the broker's server is missing, **130** interrupted."
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


def demo(
    broker: Annotated[
        str, typer.Option("--broker", metavar="NAME", help=f"Where events go: {', '.join(NAMES)}.")
    ] = "nats",
    seconds: Annotated[
        int, typer.Option("--seconds", metavar="N", min=3, max=3600, help="How long the shop writes.")
    ] = 20,
    rate: Annotated[
        int, typer.Option("--rate", metavar="N", min=10, max=5000, help="Events per second.")
    ] = 400,
    kill: Annotated[
        bool, typer.Option("--kill/--no-kill", help="Kill lanes' processes in the middle of their work.")
    ] = True,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running until Ctrl-C, and say where.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the proof as one JSON object on stdout.")
    ] = False,
) -> int:
    """See it work: a little shop writes orders and events, a relay on Spark delivers them to a broker, a consumer
    counts, an inbox on Spark consumes them too, and its handler bills each order. On the way a lane of the relay and
    one of the inbox are killed. In the end all sides are compared: event by event, and every order beside its bills.

    PostgreSQL, the broker and Spark are started for it and are gone afterwards. The story is the same on each broker,
    but for the inbox, which consumes from NATS and Kafka:

    - **nats** comes with `outspark[all]`. JetStream knows the ids of events, so it drops what is sent twice.
    - **kafka** needs Maven, which fetches the server once. A consumer group reads one topic.
    - **rabbitmq** and **redis** need the server: `apt install rabbitmq-server`, `apt install redis-server`.

    These three keep what is sent twice, and the consumer drops it by the event's id.

    ```
    outspark demo
    outspark demo --broker kafka
    outspark demo --seconds 60 --rate 1000
    outspark demo --keep
    outspark demo --json 2>/dev/null | jq .holds
    ```
    """
    name = _known(broker)
    if any(find_spec(package) is None for package in NEEDED):
        raise ExtraMissing("the demo", "all")
    from outspark.tools.demo.scenario import Plan

    try:
        with Interruptions() as interruptions:
            plan = Plan(seconds=seconds, rate=rate, kill=kill, keep=keep)
            return _run(plan, open_broker(name, tool="the demo", extra="all"), interruptions, as_json=json)
    except Interrupted as interrupted:
        typer.echo("interrupted; everything is stopped and removed", err=True)
        return 128 + interrupted.number


def _known(broker: str) -> BrokerName:
    for name in NAMES:
        if name == broker:
            return name
    problem = f"{broker!r} is not supported; allowed: {', '.join(NAMES)}"
    raise typer.BadParameter(problem, param_hint="'--broker'")


def _run(plan: Plan, broker: Broker, interruptions: Interruptions, *, as_json: bool) -> int:
    from rich.console import Console

    from outspark.tools.demo import summary
    from outspark.tools.demo.scenario import run_scenario
    from outspark.tools.demo.screen import open_screen
    from outspark.tools.demo.setup import Setup

    console = Console(stderr=True)
    console.print(INTRODUCTION.format(broker=broker.title) + BILLING * broker.has_feed, highlight=False)
    _find_server(broker, console)
    screen = open_screen(console)
    with ExitStack() as stack:
        with interruptions.held():
            setup = stack.enter_context(Setup(broker, screen))
        try:
            with screen:
                report = run_scenario(setup, plan, screen)
        except OutsparkError as error:
            culprit = setup.culprit() or setup.relay
            log = culprit.save_log()
            raise OutsparkError(f"{error}; its log is {log} and ends with:\n{culprit.tail()}") from error
        summary.show(report, as_json=as_json)
        for one in setup.applications if not report.holds else ():
            typer.echo(f"the {one.kind}'s log is {one.save_log()}", err=True)
        if plan.keep:
            typer.echo(summary.addresses(setup), err=True)
            with suppress(Interrupted):
                threading.Event().wait()
            typer.echo("\n stopping", err=True)
    return 0 if report.holds else 1


def _find_server(broker: Broker, console: Console) -> None:
    """Before anything starts, and while a signal can interrupt: the first time, there may be much to fetch."""
    try:
        with console.status(f"finding a {broker.title} server, or fetching one"):
            broker.find_server()
    except ServerStartError as error:
        raise SettingsError(f"the demo cannot run on {broker.title} here: {error}") from error
