"""`outspark inbox …`: accept messages from a broker, and handle each of them once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from outspark.cli import options
from outspark.cli.commands import command, commands, flag

if TYPE_CHECKING:
    from outspark.config.settings import Settings
    from outspark.inbox.lane import Task

app = commands("Accept messages from a broker, and handle each message once.")

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[INBOX]...", help="Only these inboxes of the settings.", show_default=False),
]
App = Annotated[str | None, flag("--app MODULE:ROUTER", "Where the handlers are; overrides the settings.")]


@command(app)
def consume(*, names: Names = None, config: options.Config = None, hosting: options.HostingOptions) -> None:
    """Accept messages from Kafka or NATS into the inbox, until stopped.

    Each message becomes one row of the inbox, however often the broker delivers it. The strategy of the inbox decides
    when the message is acknowledged to the broker: before its row is committed, after that, or once it is handled.

    ```
    outspark inbox consume --config outspark.toml
    outspark inbox consume billing --lanes 4
    ```
    """
    _run(hosting.load(config), names, ["consume"])


@command(app)
def handle(
    *,
    names: Names = None,
    app: App = None,
    config: options.Config = None,
    until_empty: Annotated[
        bool, flag("--until-empty", "Exit with code 0 once no event waits for its handler.")
    ] = False,
    hosting: options.HostingOptions,
) -> None:
    """Call the handlers of the events in the inbox, until stopped.

    With the strategy exactly-once, which is the default, the writes of a handler and the completion of its event are
    one transaction: PostgreSQL commits both or neither.

    ```
    outspark inbox handle --app billing.handlers:router
    outspark inbox handle billing --until-empty
    ```
    """
    _run(hosting.load(config), names, ["handle"], app=app, until_empty=until_empty)


@command(app)
def run(
    *, names: Names = None, app: App = None, config: options.Config = None, hosting: options.HostingOptions
) -> None:
    """Accept messages and handle them, in one application, until stopped.

    ```
    outspark inbox run --app billing.handlers:router
    ```
    """
    _run(hosting.load(config), names, ["consume", "handle"], app=app)


def _run(
    settings: Settings,
    names: list[str] | None,
    tasks: list[Task],
    *,
    app: str | None = None,
    until_empty: bool = False,
) -> NoReturn:
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

    raise typer.Exit(run_inbox(settings, chosen, tasks, until_empty=until_empty))
