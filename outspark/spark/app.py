"""The application on the Spark driver: lanes run in long tasks, and one driver thread per lane submits them."""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from outspark.config.settings import Settings
from outspark.errors import ExtraMissing
from outspark.hosting.spec import LaneSpec
from outspark.maintenance.partitions import PartitionKeeper
from outspark.observability import metrics, otel
from outspark.observability.causes import Causes
from outspark.observability.metrics import Tally

try:
    from pyspark.sql import SparkSession

    from outspark.spark.session import cancel, close_session, open_session
    from outspark.spark.shifts import Shifts, reason
    from outspark.spark.watchdog import HANGING, SILENT, prefix
except ImportError as error:
    raise ExtraMissing("the relay", "spark") from error

log = logging.getLogger(__name__)

MAX_FAILURES = 3
"""Failures in a row after which a lane counts as not alive."""
CANCEL_WAIT = 5.0
"""Seconds that the driver waits for cancelled tasks to end."""
ORPHAN_POLL = 0.1
WATCH_INTERVAL = 1.0
QUERY_MARGIN = 5.0
"""Seconds that the driver gives a hanging lane to report its location before the driver infers one."""
STUCK = "lane is stuck"
CALM_MARGIN = 5.0
"""Seconds beyond a shift after which an outage that no lane reports any more counts as over."""


class SparkApplication(ABC):
    """Lanes hosted on Spark. `start` returns once the lanes are submitted, `stop` once they ended or were cancelled."""

    kind = "application"

    def __init__(self, settings: Settings, instance: str, specs: Sequence[LaneSpec]) -> None:
        self.settings = settings
        self.instance = instance
        self.tally = Tally()
        self.causes = Causes(calm=settings.hosting.shift.total_seconds() + CALM_MARGIN)
        self.stopping = threading.Event()
        self.started = time.time()
        self.spark: SparkSession | None = None
        self._specs = specs
        self._tag = f"outspark-{instance}"
        self._shifts: list[Shifts] = []
        self._threads: list[threading.Thread] = []
        self._export = otel.metrics_export(self.metrics, os.environ)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        self._preflight()
        self.spark = spark = open_session(self.settings.hosting, self.settings.relay.id, len(self._specs))
        lanes = len(self._specs)
        for number, spec in enumerate(self._specs):
            shifts = Shifts(
                spark=spark,
                spec=spec,
                log=self.settings.log,
                tag=self._tag,
                report=self._take_report,
                failed=self._count_failure,
                stopping=self.stopping,
                stagger=(number + 1) / lanes,
            )
            thread = threading.Thread(target=shifts.run, name=f"outspark-driver-{number}", daemon=True)
            self._shifts.append(shifts)
            self._threads.append(thread)
            thread.start()
        for name, work in self._background_threads().items():
            threading.Thread(target=work, args=(self.stopping,), name=f"outspark-{name}", daemon=True).start()
        log.info(f"{self.kind} is running", extra={"relay": self.settings.relay.id, "lanes": lanes})

    def stop(self) -> None:
        """Let the lanes finish their batches in flight; cancel the tasks of lanes that do not end in time."""
        self.stopping.set()
        deadline = time.monotonic() + self.settings.hosting.shutdown_timeout.total_seconds()
        if self._threads:
            self._send_stop()
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < deadline:
            _join(self._threads, 0.5)
            # NOTIFY reaches only sessions that listen already: repeat it for a shift that was starting, or whose
            # connection was lost for a moment.
            self._send_stop()
        if any(thread.is_alive() for thread in self._threads):
            log.warning("lanes did not finish in time; their tasks are cancelled")
            if self.spark is not None:
                cancel(self.spark, self._tag)
            _join(self._threads, CANCEL_WAIT)
        self._ended(all_lanes=self._await_orphans(deadline))
        if self._export is not None:
            self._export.stop()
        if self.spark is not None:
            close_session(self.spark)
        log.info(f"{self.kind} has stopped")

    def _await_orphans(self, deadline: float) -> bool:
        """Wait for lanes that outlive Spark to finish their batch. True when no lane can be at work any more."""
        if any(thread.is_alive() for thread in self._threads):
            return False
        while at_work := self._lanes_at_work():
            if time.monotonic() >= deadline:
                log.warning("lanes did not finish in time", extra={"lanes": sorted(at_work)})
                return False
            self._send_stop()
            time.sleep(ORPHAN_POLL)
        return True

    @property
    def lost(self) -> bool:
        """The Spark application has ended, so this process has to be restarted."""
        return any(shifts.lost for shifts in self._shifts)

    # The methods of outspark.server.StatusView

    def healthy(self) -> list[str]:
        if self.stopping.is_set():
            return [f"the {self.kind} is stopping"]
        return [
            f"lane {shifts.spec.lane}: {shifts.stuck or shifts.problem or 'not running'}"
            for shifts in self._shifts
            if not shifts.running or shifts.failures >= MAX_FAILURES or shifts.stuck
        ]

    @abstractmethod
    def ready(self) -> list[str]: ...

    def stuck(self) -> list[str]:
        return []

    @abstractmethod
    def drained(self) -> bool:
        """True when no event is due."""

    def stats(self) -> dict[str, Any]:
        return {
            "relay": self.settings.relay.id,
            "uptime_seconds": round(time.time() - self.started, 1),
            "lanes": [
                {
                    "lane": s.spec.lane,
                    "running": s.running,
                    "failures": s.failures,
                    "problem": s.stuck or s.problem,
                }
                for s in self._shifts
            ],
        }

    def metrics(self) -> Tally:
        self.tally.set(metrics.LANES_RUNNING, sum(shifts.running for shifts in self._shifts))
        self._gauge()
        return self.tally

    @abstractmethod
    def _preflight(self) -> None:
        """Raise for configuration and database errors that a retry cannot fix."""

    @abstractmethod
    def _send_stop(self) -> bool:
        """Notify the lanes to stop; repeated until they have ended. False when no database could be reached."""

    @abstractmethod
    def _lanes_at_work(self) -> set[int]:
        """The lanes whose baton lock is held in a database that answers."""

    @abstractmethod
    def _query(self, statement: str, parameters: dict[str, Any]) -> list[str]:
        """The first column of the rows of all databases."""

    @abstractmethod
    def _gauge(self) -> None: ...

    def _background_threads(self) -> Mapping[str, Callable[[threading.Event], None]]:
        """Name -> function that runs in a driver thread of its own until the event is set."""
        keeper = PartitionKeeper.of(self.settings)
        kept = {} if keeper is None else {"partitions": keeper.run}
        return {"causes": self.causes.run, "watch": self._watch, **kept}

    def _watch(self, stopping: threading.Event) -> None:
        """Check for stuck lanes: a lane that hangs cannot report it, but its shift does not end."""
        limit = self.settings.hosting.stuck_after.total_seconds()
        while not stopping.wait(WATCH_INTERVAL):
            for shifts in self._shifts:
                self._check_stuck(shifts, limit)

    def _check_stuck(self, shifts: Shifts, limit: float) -> None:
        lane, late, who = shifts.spec.lane, shifts.late(), f"driver of lane {shifts.spec.lane}"
        where = self._stuck_location(shifts.spec, limit) if late >= limit else None
        if where is None:
            shifts.stuck = ""
            self.causes.clear(STUCK, who=who)
            return
        count = 0 if shifts.stuck else 1
        shifts.stuck = f"stuck in {where}, its shift is {late:.0f} s overdue"
        self.causes.raise_(STUCK, f"lane {lane}: {shifts.stuck}", count, who=who, level=logging.ERROR)

    def _stuck_location(self, spec: LaneSpec, limit: float) -> str | None:
        """Where the lane hangs; None for a lane that makes progress, and only waits for its next shift to start."""
        # The lane's watchdog reports first, with an exact location; its silent session is the fallback.
        silent = {"class": spec.baton[0], "lane": spec.lane, "seconds": limit + QUERY_MARGIN}
        found = self._query(HANGING, {"prefix": prefix(spec)}) or self._query(SILENT, silent)
        return found[0] if found else None

    @abstractmethod
    def _ended(self, *, all_lanes: bool) -> None:
        """Clean up after the lanes; `all_lanes` is true when no lane can be at work any more."""

    def _take_report(self, report: dict[str, Any]) -> None:
        self.tally.merge(Tally.from_json(report["tally"]))
        self.causes.take(report["lane"], report["causes"])

    def _count_failure(self, lane: int, error: Exception) -> None:
        self.tally.add(metrics.LANE_RESTARTS_TOTAL)
        self.causes.raise_("lane failed; starting it again", reason(error), who=lane, level=logging.ERROR)


def _join(threads: list[threading.Thread], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
