"""Runs a relay or an inbox as a process: server beside it, signals, and an exit code."""

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
    """Relay until a signal says stop, or with `until_empty` until nothing is due any more. The exit code."""
    logs.configure(settings.log)
    require_ends(settings)
    with ExitStack() as stack:
        return _run(RelayApp(_with_stdout(settings, stack)), stack, until_empty)


def run_inbox(
    settings: Settings, names: Sequence[str], tasks: Sequence[Task], *, until_empty: bool = False
) -> int:
    """Take messages in, handle them, or both, until a signal says stop."""
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
        # Who tells us to end may have told what we were starting, too.
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
    """Lanes have no stdout of their own, so those on this machine write through a funnel into ours."""
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
    """Asked for by a signal, and at once by a second one.

    A signal may come while the one before is being answered, so that is noted before anything else, and
    without a lock: an Event's may be held by what was interrupted.
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
