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


class DatabaseSilent(OutsparkError):
    """It has been asked, and does not answer."""


class Asker:
    """One thing after the other, in one thread that never keeps the process from ending."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._since: float | None = None
        """When the thing that is being asked now was begun."""
        threading.Thread(target=self._run, name="outspark-asking", daemon=True).start()

    def ask(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._tasks.put((future, work))
        return future

    def answer(self, future: Future[T], until: float, patience: float) -> T:
        """What the work answered or raised; DatabaseSilent when it takes longer than that, or what came before it."""
        since = self._since
        if since is not None:
            until = min(until, since + patience)
        try:
            return future.result(max(until - time.monotonic(), 0.0))
        except TimeoutError:
            future.cancel()
            raise DatabaseSilent(f"the database has not answered for {patience:g} s") from None

    def close(self) -> None:
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, work = task
            if not future.set_running_or_notify_cancel():
                continue
            self._since = time.monotonic()
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - whoever asked gets it
                future.set_exception(error)
            self._since = None
