"""The driver's side of one lane: it submits shift after shift, each a little before the last one ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import SparkSession

from outspark.config.settings import LogSettings
from outspark.hosting.spec import LaneSpec
from outspark.spark.session import has_ended
from outspark.spark.task import run_shift

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0


@dataclass(slots=True)
class Shift:
    number: int
    future: Future[dict[str, Any]]
    relief: float
    """When the next shift is to be submitted, on the monotonic clock."""


@dataclass(slots=True)
class Shifts:
    """Keeps one lane hosted until told to stop. A shift that fails is submitted again, at once the first time."""

    spark: SparkSession
    spec: LaneSpec
    log: LogSettings
    tag: str
    report: Callable[[dict[str, Any]], None]
    failed: Callable[[int, Exception], None]
    stopping: threading.Event
    stagger: float
    """Share of a shift that the first one lasts, so that not all lanes hand over at the same time."""
    running: bool = False
    failures: int = 0
    problem: str = ""
    lost: bool = False
    """Spark itself has ended, so the lane cannot be hosted any more."""
    stuck: str = ""
    """Where the lane hangs, if its shift does not end."""
    _current: Shift | None = None
    _due: float = 0.0
    _pool: ThreadPoolExecutor = field(init=False)
    _next: int = 0

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix=f"outspark-lane-{self.spec.lane}")

    def run(self) -> None:
        """The life of a driver thread."""
        try:
            current = self._submit(self.stagger)
            while not (self.stopping.is_set() or self.lost):
                self._note_due(current)
                current = self._relieve(current)
            if not self.lost:
                self._finish(current)
        finally:
            self.running = False
            self._pool.shutdown(wait=False, cancel_futures=True)

    def late(self) -> float:
        """Seconds since the shift at work should have been relieved; negative before that."""
        return time.monotonic() - self._due if self.running and self._current is not None else -1.0

    def _note_due(self, shift: Shift) -> None:
        if self._current is None or self._current.number != shift.number:
            # One that had to wait for the last to end has not had its time yet.
            self._current, self._due = shift, max(shift.relief, time.monotonic())

    def _relieve(self, current: Shift) -> Shift:
        """Wait until it is time for the next shift, start it, and see the old one off."""
        if not self._wait(current, current.relief):
            return current if self.stopping.is_set() else self._overlap(current)
        if self._finish(current):
            return self._submit()
        if self.lost:
            return current
        pause = min(FIRST_PAUSE * 2 ** (self.failures - 1), LONGEST_PAUSE) if self.failures > 1 else 0.0
        self.stopping.wait(pause)
        return self._submit()

    def _overlap(self, current: Shift) -> Shift:
        following = self._submit()
        wait_for([current.future, following.future], return_when="FIRST_COMPLETED")
        if not current.future.done() and not self.stopping.is_set():
            # The newcomer ended first: it failed before it could take over, and the old one works on.
            self._finish(following)
            return replace(current, relief=time.monotonic() + FIRST_PAUSE * 10)
        self._finish(current)
        return following

    def _submit(self, fraction: float = 1.0) -> Shift:
        length = self.spec.hosting.shift * fraction
        spec = self.spec.for_shift(self._next, length)
        self._next += 1
        self.running = True
        future = self._pool.submit(run_shift, self.spark, spec, self.log, self.tag)
        return Shift(spec.shift, future, time.monotonic() + length.total_seconds())

    def _wait(self, shift: Shift, until: float) -> bool:
        """True when the shift has ended; False when the time has come or a stop was asked for."""
        while not self.stopping.is_set():
            left = until - time.monotonic()
            if wait_for([shift.future], timeout=max(min(left, 0.2), 0)).done:
                return True
            if left <= 0:
                return False
        return False

    def _finish(self, shift: Shift) -> bool:
        """Take the report in; False when the shift failed."""
        try:
            self.report(shift.future.result())
        except Exception as error:  # noqa: BLE001 - a lane must be hosted again whatever ended its task
            if self.stopping.is_set():
                return False
            self.failures += 1
            self.problem = reason(error)
            self.failed(self.spec.lane, error)
            self.lost = has_ended(self.spark)
            if self.lost:
                extra = {"lane": self.spec.lane, "shift": shift.number, "error": self.problem}
                log.error("the lane's Spark task failed", extra=extra)
            return False
        self.failures, self.problem = 0, ""
        return True


def reason(error: Exception) -> str:
    """The line that says why: of a Python traceback inside a Java one, the last of the Python part."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if line.startswith(("outspark.errors.", "psycopg.", "Caused by: ")) or "exited unexpectedly" in line:
            return line[:500]
    return lines[0][:500] if lines else type(error).__name__
