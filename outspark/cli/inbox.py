"""`outspark inbox …`: take messages in from a broker, and handle them, each once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outspark.cli import options
from outspark.cli.exits import EPILOG

if TYPE_CHECKING:
    from outspark.config.settings import Settings
    from outspark.inbox.lane import Task

app = typer.Typer(
    help="Take messages in from a broker, and handle each of them once.",
    no_args_is_help=True,
    epilog=EPILOG,
    rich_markup_mode="markdown",
)

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[INBOX]...", help="Only these inboxes of the settings.", show_default=False),
]
App = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:ROUTER", help="The handlers, over the settings."),
]
Lanes = Annotated[
    int | None, typer.Option("--lanes", metavar="N", help="Loops that work side by side, for each inbox.")
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark master; local unless the settings say else."),
]
Port = Annotated[
    int | None, typer.Option("--port", metavar="N", help="Port of health and metrics; 0 picks a free one.")
]
LogLevel = Annotated[
    str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
]
LogFormat = Annotated[
    str | None, typer.Option("--log-format", metavar="text|json", help="Lines for people or for machines.")
]
UntilEmpty = Annotated[
    bool, typer.Option("--until-empty", help="End with exit code 0 once no event waits for its handler.")
]


@app.command(epilog=EPILOG)
def consume(
    names: Names = None,
    config: options.Config = None,
    lanes: Lanes = None,
    master: Master = None,
    port: Port = None,
    wait_for_database: options.WaitForDatabase = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Take messages in from Kafka or NATS until stopped.

    Each message becomes one row of the inbox, however often it is delivered. The broker hears of it when the
    strategy says so: first of all, once it is kept, or once it is handled.

    ```
    outspark inbox consume --config outspark.toml
    outspark inbox consume billing --lanes 4
    ```
    """
    settings = _settings(config, lanes, master, port, wait_for_database, log_level, log_format)
    raise typer.Exit(_run(settings, names, ["consume"], until_empty=False))


@app.command(epilog=EPILOG)
def handle(
    names: Names = None,
    app: App = None,
    config: options.Config = None,
    lanes: Lanes = None,
    master: Master = None,
    port: Port = None,
    until_empty: UntilEmpty = False,
    wait_for_database: options.WaitForDatabase = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Call the handlers of what was taken in until stopped.

    A handler's writes and the completion of its event are one transaction: both are there, or neither.

    ```
    outspark inbox handle --app billing.handlers:router
    outspark inbox handle billing --until-empty
    ```
    """
    settings = _settings(config, lanes, master, port, wait_for_database, log_level, log_format)
    raise typer.Exit(_run(settings, names, ["handle"], until_empty=until_empty, app=app))


@app.command(epilog=EPILOG)
def run(
    names: Names = None,
    app: App = None,
    config: options.Config = None,
    lanes: Lanes = None,
    master: Master = None,
    port: Port = None,
    wait_for_database: options.WaitForDatabase = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Take messages in and handle them, in one application, until stopped.

    ```
    outspark inbox run --app billing.handlers:router
    ```
    """
    settings = _settings(config, lanes, master, port, wait_for_database, log_level, log_format)
    raise typer.Exit(_run(settings, names, ["consume", "handle"], until_empty=False, app=app))


def _settings(
    config: Path | None,
    lanes: int | None,
    master: str | None,
    port: int | None,
    wait_for_database: bool,
    log_level: str | None,
    log_format: str | None,
) -> Settings:
    return options.load_settings(
        config,
        lanes=lanes,
        master=master,
        port=port,
        wait_for_database=wait_for_database or None,
        log_level=log_level,
        log_format=log_format,
    )


def _run(
    settings: Settings,
    names: list[str] | None,
    tasks: list[Task],
    *,
    until_empty: bool,
    app: str | None = None,
) -> int:
    from outspark.config.extras import require_for_inboxes
    from outspark.errors import SettingsError

    known = ", ".join(settings.inboxes) or "(none)"
    for name in names or ():
        if name not in settings.inboxes:
            raise SettingsError(f"there is no inbox {name!r}; the settings have: {known}")
    chosen = list(names or settings.inboxes)
    if not chosen:
        raise SettingsError("no inbox is configured: write an [inboxes.NAME] table in outspark.toml")
    if app is not None:
        inboxes = {
            name: inbox.model_copy(update={"app": app}) if name in chosen else inbox
            for name, inbox in settings.inboxes.items()
        }
        settings = settings.model_copy(update={"inboxes": inboxes})
    require_for_inboxes([settings.inboxes[name] for name in chosen], consume="consume" in tasks)
    from outspark.runner import run_inbox

    return run_inbox(settings, chosen, tasks, until_empty=until_empty)
