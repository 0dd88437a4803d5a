"""Runs a relay or an inbox as a process, with its HTTP server, signal handlers and exit code."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from types import FrameType

from outspark.brokers.stdout import Funnel
from outspark.config.loading import require_ends
from outspark.config.settings import Settings
from outspark.errors import SparkLost
from outspark.inbox.lane import Task
from outspark.observability import logs
from outspark.server import ServerThread, create_app
from outspark.spark.app import SparkApplication
from outspark.spark.inbox import InboxApp
from outspark.spark.relay import RelayApp

log = logging.getLogger(__name__)


def run(settings: Settings, *, until_empty: bool = False) -> int:
    """Run a relay until a signal arrives, or with `until_empty` until no event is due. Returns the exit code."""
    logs.configure(settings.log)
    require_ends(settings)
    with ExitStack() as stack:
        return _run(RelayApp(_with_stdout(settings, stack)), stack, until_empty)


def run_inbox(
    settings: Settings, names: Sequence[str], tasks: Sequence[Task], *, until_empty: bool = False
) -> int:
    """Run the lanes of inboxes until a signal arrives. Returns the exit code."""
    logs.configure(settings.log)
    with ExitStack() as stack:
        return _run(InboxApp(settings, names, tasks), stack, until_empty)


def _run(app: SparkApplication, stack: ExitStack, until_empty: bool) -> int:
    stop = _Stop()
    stop.listen()
    server = _serve(app)
    if server is not None:
        stack.callback(server.stop)
    stack.callback(app.stop)
    try:
        app.start()
    except Exception:
        if not stop.asked:
            raise
        # The signal may have reached the whole process group, and ended what was starting.
        log.info("stopped before the start was complete", exc_info=log.isEnabledFor(logging.DEBUG))
    # Spark takes over SIGINT while its session starts.
    stop.listen()
    while not stop.asked:
        if app.lost:
            raise SparkLost()
        if until_empty and app.drained():
            break
        time.sleep(0.25)
    return 0


def _with_stdout(settings: Settings, stack: ExitStack) -> Settings:
    """Spark's workers have no stdout of their own, so lanes on this machine write to this process's by a funnel."""
    if not settings.hosting.master.startswith("local"):
        return settings
    plain = {
        name: destination
        for name, destination in settings.destinations.items()
        if destination.type == "stdout" and "path" not in destination.options
    }
    if not plain:
        return settings
    path = str(stack.enter_context(Funnel(sys.stdout.buffer)).path)
    through = {name: one.model_copy(update={"options": {"path": path}}) for name, one in plain.items()}
    return settings.model_copy(update={"destinations": {**settings.destinations, **through}})


def _serve(app: SparkApplication) -> ServerThread | None:
    settings = app.settings.server
    if not settings.enabled:
        return None
    server = ServerThread(create_app(app, settings.health_check_interval), settings.host, settings.port)
    server.start()
    log.info("server is listening", extra={"host": settings.host, "port": server.port})
    return server


class _Stop:
    """The first signal requests a graceful stop, the second one exits immediately.

    A second signal may interrupt the handler of the first, so `asked` is set before anything else. It is a plain
    attribute and not an Event, because the interrupted code might hold the Event's lock.
    """

    asked = False

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os._exit(128 + number)
        self.asked = True
        log.info(
            "shutting down; send the signal again to exit immediately",
            extra={"signal": signal.Signals(number).name},
        )
