"""Queries with a deadline: each database has its own thread, so a database that hangs delays no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from outspark.errors import OutsparkError

T = TypeVar("T")


class DatabaseTimeout(OutsparkError):
    """The database has not answered a query within the timeout."""


class QueryThread:
    """Runs work in order in one daemon thread, so work that hangs never keeps the process from exiting."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._busy_since: float | None = None
        """When the current work began, on the monotonic clock; None while the thread is idle."""
        threading.Thread(target=self._run, name="outspark-queries", daemon=True).start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._tasks.put((future, work))
        return future

    def result(self, future: Future[T], until: float, timeout: float) -> T:
        """What the work returned or raised. DatabaseTimeout when it is not done by `until`.

        DatabaseTimeout too when earlier work has occupied the thread for `timeout` seconds.
        """
        # Only the worker thread writes `_busy_since`, and one attribute read is atomic: no lock is needed. A stale
        # value only makes this call wait for longer or shorter, never for more than `until`.
        since = self._busy_since
        if since is not None:
            until = min(until, since + timeout)
        try:
            return future.result(max(until - time.monotonic(), 0.0))
        except TimeoutError:
            # Work that has not begun is dropped, so work for a hanging database does not pile up.
            future.cancel()
            raise DatabaseTimeout(f"the database has not answered for {timeout:g} s") from None

    def close(self) -> None:
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, work = task
            if not future.set_running_or_notify_cancel():
                continue
            self._busy_since = time.monotonic()
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - `result` raises it in the caller's thread
                future.set_exception(error)
            self._busy_since = None
