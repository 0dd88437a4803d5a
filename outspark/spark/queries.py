"""Asks databases, each in a thread of its own, and waits only so long: one that hangs delays no other."""

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
    """It has been submitted, and does not answer."""


class QueryThread:
    """One thing after the other, in one thread that never keeps the process from ending."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._busy_since: float | None = None
        """When the thing that is being submitted now was begun."""
        threading.Thread(target=self._run, name="outspark-queries", daemon=True).start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._tasks.put((future, work))
        return future

    def result(self, future: Future[T], until: float, timeout: float) -> T:
        """What the work answered or raised; DatabaseTimeout when it takes longer than that, or what came before it."""
        since = self._busy_since
        if since is not None:
            until = min(until, since + timeout)
        try:
            return future.result(max(until - time.monotonic(), 0.0))
        except TimeoutError:
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
            except BaseException as error:  # noqa: BLE001 - whoever submitted gets it
                future.set_exception(error)
            self._busy_since = None
