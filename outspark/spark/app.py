"""The relay as a Spark application: lanes in long tasks, one driver thread each."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from typing import Any

from outspark import metrics, telemetry
from outspark.errors import ExtraMissing
from outspark.metrics import Tally
from outspark.relay.housekeeping import Housekeeper
from outspark.relay.shedlock import holder
from outspark.relay.spec import share_out
from outspark.settings import Settings
from outspark.spark.monitor import Monitor, as_json

try:
    from pyspark.sql import SparkSession

    from outspark.spark.session import open_session
    from outspark.spark.shifts import Shifts
except ImportError as error:
    raise ExtraMissing("the relay", "spark") from error

log = logging.getLogger(__name__)

UNWELL = 3
"""Failures in a row after which a lane counts as not alive."""
CANCEL_WAIT = 5.0


class RelayApp:
    """One run of a relay. `start` returns when lanes are submitted, `stop` when they have given their slots back."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.instance = secrets.token_hex(4)
        self.tally = Tally()
        self._open_breakers: dict[int, dict[str, str]] = {}
        """Lane -> destinations that were down for it when its last shift ended, and why."""
        self.stopping = threading.Event()
        self.started = time.time()
        self._specs = share_out(settings, self.instance, telemetry.variables(os.environ))
        self.monitor = Monitor(settings, self.instance, self._specs[0].channel)
        self._tag = f"outspark-{self.instance}"
        self.spark: SparkSession | None = None
        self._shifts: list[Shifts] = []
        self._threads: list[threading.Thread] = []
        self._export = telemetry.metrics_export(self.metrics, os.environ)

    def __enter__(self) -> RelayApp:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        self.monitor.preflight()
        self.spark = spark = open_session(self.settings.relay)
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
        housekeeper = Housekeeper.of(self.settings.sources, holder(self.settings.relay.id, self.instance))
        if housekeeper is not None:
            threading.Thread(
                target=housekeeper.run, args=(self.stopping,), name="outspark-housekeeping", daemon=True
            ).start()
        log.info(
            "relay is running",
            extra={"relay": self.settings.relay.id, "lanes": lanes, "sources": list(self.settings.sources)},
        )

    def stop(self) -> None:
        """Finish the batches in flight and give the slots back; cancel what does not end in time."""
        self.stopping.set()
        deadline = time.monotonic() + self.settings.relay.shutdown_timeout.total_seconds()
        heard = self.monitor.say_stop()
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < deadline:
            if not heard:
                break
            _join(self._threads, 0.5)
            # A shift that was just starting when the word went round has not heard it.
            heard = self.monitor.say_stop()
        if any(thread.is_alive() for thread in self._threads):
            log.warning("lanes did not end in time; cancelling them")
            if self.spark is not None and not self.lost:
                self.spark.interruptTag(self._tag)
            _join(self._threads, CANCEL_WAIT)
        if not any(thread.is_alive() for thread in self._threads):
            # While a lane may still be publishing, the lock has to run out by itself.
            self.monitor.release_locks()
        if self._export is not None:
            self._export.stop()
        self.monitor.close()
        if self.spark is not None and not self.lost:
            self.spark.stop()
        log.info("relay has stopped", extra={"delivered": int(self._delivered())})

    @property
    def lost(self) -> bool:
        """Spark has ended under us: stop, and start again in a new process."""
        return any(shifts.lost for shifts in self._shifts)

    @property
    def breakers(self) -> dict[str, str]:
        """Destinations that are down for any lane, as of the end of its last shift."""
        return {name: reason for lane in self._open_breakers.values() for name, reason in lane.items()}

    # What the server asks (outspark.server.RelayView)

    def healthy(self) -> list[str]:
        if self.stopping.is_set():
            return ["the relay is stopping"]
        return [
            f"lane {shifts.spec.lane}: {shifts.problem or 'not running'}"
            for shifts in self._shifts
            if not shifts.running or shifts.failures >= UNWELL
        ]

    def ready(self) -> list[str]:
        return self.monitor.problems()

    def stats(self) -> dict[str, Any]:
        return {
            "relay": self.settings.relay.id,
            "uptime_seconds": round(time.time() - self.started, 1),
            "sources": {name: as_json(stats) for name, stats in self.monitor.stats().items()},
            "lanes": [
                {"lane": s.spec.lane, "running": s.running, "failures": s.failures, "problem": s.problem}
                for s in self._shifts
            ],
            "destinations": {
                name: {"open": name in self.breakers, "reason": self.breakers.get(name, "")}
                for name in self.settings.destinations
            },
            "delivered": int(self._delivered()),
        }

    def metrics(self) -> Tally:
        self.tally.set(metrics.LANES_RUNNING, sum(shifts.running for shifts in self._shifts))
        for name in self.settings.destinations:
            self.tally.set(metrics.BREAKER_OPEN, float(name in self.breakers), destination=name)
        self.monitor.gauge(self.tally)
        return self.tally

    def _delivered(self) -> float:
        return self.tally.value(metrics.EVENTS_TOTAL, status="delivered")

    def _take_report(self, report: dict[str, Any]) -> None:
        self.tally.merge(Tally.from_json(report["tally"]))
        self._open_breakers[report["lane"]] = dict(report["breakers"])

    def _count_failure(self, lane: int, error: Exception) -> None:
        self.tally.add(metrics.LANE_RESTARTS_TOTAL)


def _join(threads: list[threading.Thread], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
