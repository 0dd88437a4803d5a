"""The driver's own connections: one per database, opened on demand and reopened after an error."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import psycopg

from outspark.database.session import Connection, connect
from outspark.database.tls import explained
from outspark.errors import OutsparkError
from outspark.hosting import control
from outspark.redaction import redact
from outspark.spark.queries import QueryThread

log = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT = 5.0
"""Seconds after which a database that does not answer is reported as failed."""


class Databases:
    """Safe to use from several threads. `name` shows in pg_stat_activity."""

    def __init__(self, name: str, timeout: float = TIMEOUT) -> None:
        self._name = name
        self._timeout = timeout
        self._connections: dict[str, Connection] = {}
        self._locks: dict[str, threading.RLock] = {}
        self._threads: dict[str, QueryThread] = {}
        self._lock = threading.Lock()
        self._unreachable: set[str] = set()
        self._closed = False

    @contextmanager
    def use(self, url: str) -> Iterator[Connection]:
        """The connection, for this thread alone. A database error closes it, and the next use opens a new one."""
        with self._lock_of(url):
            try:
                yield self._open(url)
            except (psycopg.Error, OutsparkError):
                self._forget(url)
                raise
            finally:
                # A query that hung while `close` ran could not be waited for: it closes its connection itself.
                if self._closed:
                    self._forget(url)

    def each(self, urls: Mapping[str, str], work: Callable[[str], T]) -> dict[str, T | Exception]:
        """Run `work` for each name, all databases in parallel. Name -> its result, or the error.

        A database that hangs keeps its thread busy; later calls fail for it immediately until that query has ended.
        """
        threads = {name: self._thread(url) for name, url in urls.items()}
        submitted = {name: thread.submit(partial(work, name)) for name, thread in threads.items()}
        # One deadline for all: several databases that hang cost one timeout, not one each.
        until = time.monotonic() + self._timeout
        answers: dict[str, T | Exception] = {}
        for name, future in submitted.items():
            try:
                answers[name] = threads[name].result(future, until, self._timeout)
            except (psycopg.Error, OutsparkError) as error:
                answers[name] = error
        return answers

    def send_stop(self, databases: dict[str, str], channel: str) -> bool:
        """Notify all lanes to stop, through each database (name -> URL).

        False when no database could be reached, so that no lane has received it.
        """

        def say(name: str) -> None:
            self._notify(databases[name], channel, control.STOP)

        answers = self.each(databases, say)
        for name, answer in answers.items():
            if answer is not None:
                level = logging.DEBUG if name in self._unreachable else logging.WARNING
                log.log(
                    level,
                    "the driver could not notify the lanes to stop",
                    extra={"source": name, "error": line(answer)},
                )
                self._unreachable.add(name)
        return any(answer is None for answer in answers.values())

    def lanes_at_work(self, databases: dict[str, str], number: int) -> set[int]:
        """The lanes that hold a baton of this lock class. Databases that do not answer are left out."""
        return {int(lane) for lane in self.query(databases, control.HELD_BATONS, {"class": number})}

    def query(self, databases: dict[str, str], statement: str, parameters: dict[str, Any]) -> list[str]:
        """The first column of the rows of all databases. Databases that do not answer are left out."""

        def first_column(url: str) -> list[str]:
            with self.use(url) as conn:
                return [str(row[0]) for row in conn.execute(statement.encode(), parameters)]

        found: list[str] = []
        for answer in self.each({url: url for url in databases.values()}, first_column).values():
            if isinstance(answer, Exception):
                log.debug("the driver could not query the database", extra={"error": line(answer)})
            else:
                found += answer
        return found

    def close(self) -> None:
        """Close all idle connections. A query that hangs closes its own when it ends, or ends with the process."""
        self._closed = True
        with self._lock:
            threads, self._threads = self._threads, {}
        for thread in threads.values():
            thread.close()
        for url in list(self._connections):
            # A query that hangs holds the lock of its database, so do not wait for it.
            if self._lock_of(url).acquire(blocking=False):
                self._forget(url)
                self._lock_of(url).release()

    def _lock_of(self, url: str) -> threading.RLock:
        # Two levels: `_lock` guards the dictionaries for an instant, the lock of a URL guards its connection for as
        # long as a query takes.
        with self._lock:
            return self._locks.setdefault(url, threading.RLock())

    def _thread(self, url: str) -> QueryThread:
        with self._lock:
            if url not in self._threads:
                self._threads[url] = QueryThread()
            return self._threads[url]

    def _notify(self, url: str, channel: str, message: str) -> None:
        """Send a NOTIFY. A kept connection may have died while idle, so its failure is retried on a new one."""
        if url in self._connections:
            with suppress(psycopg.Error, OutsparkError), self.use(url) as conn:
                control.notify(conn, channel, message)
                return
        with self.use(url) as conn:
            control.notify(conn, channel, message)

    def _open(self, url: str) -> Connection:
        conn = self._connections.get(url)
        if conn is None or conn.closed or conn.broken:
            conn = self._connections[url] = self._connect(url)
        return conn

    def _connect(self, url: str) -> Connection:
        try:
            return connect(url, self._name)
        except psycopg.OperationalError as error:
            reason = " ".join(str(error).split())
            if (meaning := explained(reason, url)) == reason:
                raise
            raise psycopg.OperationalError(meaning) from error

    def _forget(self, url: str) -> None:
        conn = self._connections.pop(url, None)
        if conn is not None:
            conn.close()


def line(error: Exception) -> str:
    return redact(" ".join(str(error).split())) or type(error).__name__
