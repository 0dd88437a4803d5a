"""What a worker process keeps from one shift to the next: open connections and publishers."""

from __future__ import annotations

import atexit
import gc
import logging
from collections.abc import Mapping

import psycopg

from outspark.brokers import open_publisher
from outspark.config.settings import DestinationSettings, SourceSettings
from outspark.database.connecting import Connecting
from outspark.database.session import Connection, connect
from outspark.delivery.dead_guard import DeadGuard
from outspark.delivery.destination import Destination
from outspark.observability.otel import Tracing, tracing

log = logging.getLogger(__name__)

_connections: dict[str, Connection] = {}
_destinations: dict[tuple[str, str], Destination] = {}
_guards: dict[tuple[str, str], DeadGuard] = {}
_tracing: Tracing | None = None


def tune_garbage_collector() -> None:
    """Make the garbage collector run rarely: batches create thousands of objects and hardly any reference cycle.

    By default the collector scans young objects every few hundred allocations, and at times all imported modules.
    Only for a process that does nothing but host lanes.
    """
    if gc.get_freeze_count() == 0:
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)


def connecting(url: str, name: str) -> Connecting:
    """Begin to connect to a database. A kept connection is pinged first, because it may have died while idle."""
    kept = _connections.pop(url, None)
    return Connecting(lambda: _ready(kept) or connect(url, name))


def keep(url: str, conn: Connection) -> None:
    _connections[url] = conn


def discard(url: str) -> None:
    conn = _connections.pop(url, None)
    if conn is not None:
        conn.close()


@atexit.register
def close() -> None:
    """Close and forget everything that was kept."""
    for url in list(_connections):
        discard(url)
    _guards.clear()


def destinations(settings: Mapping[str, DestinationSettings]) -> dict[str, Destination]:
    return {name: _destination(name, destination) for name, destination in settings.items()}


def guard(instance: str, name: str, source: SourceSettings) -> DeadGuard:
    """The dead guard of a source, kept across the shifts of a run: its window is longer than a shift."""
    kept = _guards.setdefault((instance, name), DeadGuard(name, source.dead_guard))
    if source.ordering == "key":
        # Another process may have found a type healthy since; the hand-over note has the current pauses.
        kept.paused.clear()
    return kept


def tracer(environ: Mapping[str, str]) -> Tracing:
    global _tracing
    if _tracing is None:
        _tracing = tracing(environ)
    return _tracing


def _destination(name: str, settings: DestinationSettings) -> Destination:
    url = settings.url.get_secret_value() if settings.url else ""
    key = (name, f"{url} {settings.model_dump_json()}")
    if key not in _destinations:
        publisher = open_publisher(name, settings)
        _destinations[key] = Destination(name, publisher, settings.publish_timeout.total_seconds())
    return _destinations[key]


def _ready(kept: Connection | None) -> Connection | None:
    if kept is None or kept.closed or kept.broken:
        return None
    try:
        kept.execute("SELECT 1")
    except psycopg.Error as error:
        log.info("a kept connection was lost; opening a new one", extra={"error": str(error).strip()})
        kept.close()
        return None
    return kept
