"""The driver's side of one lane: it submits shift after shift, each a little before the previous one ends."""

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
    """Keeps one lane hosted until `stopping` is set.

    A failed shift is resubmitted: immediately the first time, then after 0.2 s, 0.4 s and so on up to 10 s.
    """

    spark: SparkSession
    spec: LaneSpec
    log: LogSettings
    tag: str
    report: Callable[[dict[str, Any]], None]
    failed: Callable[[int, Exception], None]
    stopping: threading.Event
    stagger: float
    """Fraction of a full shift that the first one lasts, so that the lanes do not all hand over at the same time."""
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
        # Two threads: `run_shift` blocks until its job ends, and two shifts of a lane overlap at a hand-over.
        self._pool = ThreadPoolExecutor(2, thread_name_prefix=f"outspark-lane-{self.spec.lane}")

    def run(self) -> None:
        """The body of the lane's driver thread."""
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
        """Seconds by which the current shift is overdue; negative before its time."""
        return time.monotonic() - self._due if self.running and self._current is not None else -1.0

    def _note_due(self, shift: Shift) -> None:
        if self._current is None or self._current.number != shift.number:
            # A shift that had to wait for the previous one to end gets its full time from now on.
            self._current, self._due = shift, max(shift.relief, time.monotonic())

    def _relieve(self, current: Shift) -> Shift:
        """Wait until the next shift is due, submit it and take the report of this one. Returns the current shift."""
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
        # Both shifts run now. The new one warms up and waits for the baton, an advisory lock that the old one releases
        # when it ends; so the lane is never worked on twice, and almost never not at all.
        following = self._submit()
        wait_for([current.future, following.future], return_when="FIRST_COMPLETED")
        if not current.future.done() and not self.stopping.is_set():
            # The new shift ended first: it failed before it took over, so the old one continues and is relieved later.
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
        """True when the shift has ended; False at the time `until`, or when a stop was requested."""
        while not self.stopping.is_set():
            left = until - time.monotonic()
            if wait_for([shift.future], timeout=max(min(left, 0.2), 0)).done:
                return True
            if left <= 0:
                return False
        return False

    def _finish(self, shift: Shift) -> bool:
        """Wait for the shift to end and take its report; False when the shift failed."""
        try:
            self.report(shift.future.result())
        except Exception as error:  # noqa: BLE001 - the lane is hosted again after any failure of its task
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
    """The line of the error that names the cause: in a Java trace, the last line of the Python traceback in it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if line.startswith(("outspark.errors.", "psycopg.", "Caused by: ")) or "exited unexpectedly" in line:
            return line[:500]
    return lines[0][:500] if lines else type(error).__name__
