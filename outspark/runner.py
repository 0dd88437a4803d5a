"""Runs a relay as a process: server beside it, signals, and an exit code."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType

from outspark import logs
from outspark.loading import require_ends
from outspark.server import ServerThread, create_app
from outspark.settings import Settings
from outspark.spark.app import RelayApp

log = logging.getLogger(__name__)


def run(settings: Settings, *, until_empty: bool = False) -> int:
    """Relay until a signal says stop, or with `until_empty` until nothing is due any more. The exit code."""
    logs.configure(settings.log)
    require_ends(settings)
    app = RelayApp(settings)
    server = _serve(app)
    done = threading.Event()
    _on_signals(done)
    try:
        app.start()
        # Spark takes over SIGINT while its session starts.
        _on_signals(done)
        while not done.wait(0.25):
            if until_empty and app.monitor.drained():
                break
    finally:
        app.stop()
        if server is not None:
            server.stop()
    return 0


def _serve(app: RelayApp) -> ServerThread | None:
    settings = app.settings.server
    if not settings.enabled:
        return None
    server = ServerThread(create_app(app, settings.health_check_interval), settings.host, settings.port)
    server.start()
    log.info("server is listening", extra={"host": settings.host, "port": server.port})
    return server


def _on_signals(done: threading.Event) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        if done.is_set():
            os._exit(128 + number)
        log.info("stopping; once more stops at once", extra={"signal": signal.Signals(number).name})
        done.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
