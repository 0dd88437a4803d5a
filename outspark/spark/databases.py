"""The driver's own connections: one per database, opened when needed and again after a loss."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg

from outspark.errors import OutsparkError
from outspark.redaction import redact
from outspark.relay import control
from outspark.relay.connection import Connection, connect

log = logging.getLogger(__name__)


class Databases:
    """Safe to use from several threads. `name` shows in pg_stat_activity."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._connections: dict[str, Connection] = {}
        self._lock = threading.RLock()
        self._unheard: set[str] = set()

    @contextmanager
    def use(self, url: str) -> Iterator[Connection]:
        """The connection, for this thread alone; after an error of the database the next one is new."""
        with self._lock:
            try:
                yield self._open(url)
            except (psycopg.Error, OutsparkError):
                self._forget(url)
                raise

    def say_stop(self, databases: dict[str, str], channel: str) -> bool:
        """Tell all lanes to finish, in each database by the name it is known by.

        False when none could be reached, so that no lane can have heard it.
        """
        heard = False
        for name, url in databases.items():
            try:
                self._say(url, channel, control.STOP)
                heard = True
            except (psycopg.Error, OutsparkError) as error:
                level = logging.DEBUG if name in self._unheard else logging.WARNING
                log.log(level, "lanes cannot be told to stop", extra={"source": name, "error": line(error)})
                self._unheard.add(name)
        return heard

    def batons(self, databases: dict[str, str], number: int) -> int:
        """How many lanes hold a baton of this class. A database that does not answer holds none."""
        held = 0
        for url in set(databases.values()):
            try:
                with self.use(url) as conn:
                    [(count,)] = conn.execute(control.HELD_BATONS, [number]).fetchall()
                    held += count
            except (psycopg.Error, OutsparkError) as error:
                log.debug("batons cannot be counted", extra={"error": line(error)})
        return held

    def close(self) -> None:
        with self._lock:
            for url in list(self._connections):
                self._forget(url)

    def _say(self, url: str, channel: str, message: str) -> None:
        """A connection that was kept may have died since, so its failure says nothing about the database."""
        with self._lock:
            if url in self._connections:
                with suppress(psycopg.Error, OutsparkError), self.use(url) as conn:
                    control.say(conn, channel, message)
                    return
            with self.use(url) as conn:
                control.say(conn, channel, message)

    def _open(self, url: str) -> Connection:
        conn = self._connections.get(url)
        if conn is None or conn.closed or conn.broken:
            conn = self._connections[url] = connect(url, self._name)
        return conn

    def _forget(self, url: str) -> None:
        conn = self._connections.pop(url, None)
        if conn is not None:
            conn.close()


def line(error: Exception) -> str:
    return redact(" ".join(str(error).split())) or type(error).__name__
