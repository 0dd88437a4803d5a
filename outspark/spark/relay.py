"""The relay as a Spark application: it delivers the events of its sources."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Any

from outspark.config.settings import Settings
from outspark.contracts.maintenance import Stats
from outspark.database.shedlock import holder
from outspark.maintenance.housekeeping import Housekeeper
from outspark.observability import metrics, otel
from outspark.redaction import redact
from outspark.relay.spec import assign_slots
from outspark.spark.app import SparkApplication
from outspark.spark.closed_topics import ClosedTopics, as_causes
from outspark.spark.monitor import Monitor, as_json


class RelayApp(SparkApplication):
    kind = "relay"

    def __init__(self, settings: Settings) -> None:
        instance = secrets.token_hex(4)
        specs = assign_slots(settings, instance, otel.variables(os.environ))
        self.monitor = Monitor(settings, instance, specs[0].channel)
        self._open_breakers: dict[int, dict[str, str]] = {}
        """Lane -> destinations that were down for it when its last shift ended, and why."""
        self.closed = ClosedTopics()
        self._lane_problems: dict[int, list[str]] = {}
        self._has_problems = False
        """Did the last readiness check report a problem?"""
        super().__init__(settings, instance, specs)

    @property
    def breakers(self) -> dict[str, str]:
        """Destinations that are down for any lane, as of the end of its last shift."""
        return {name: reason for lane in self._open_breakers.values() for name, reason in lane.items()}

    def ready(self) -> list[str]:
        found = [*self.monitor.problems(), *self.closed.problems()]
        self._has_problems = bool(found)
        return found

    def stuck(self) -> list[str]:
        reported = [problem for problems in list(self._lane_problems.values()) for problem in problems]
        return [] if self._has_problems else self.monitor.stuck(reported)

    def drained(self) -> bool:
        return self.monitor.drained()

    def stats(self) -> dict[str, Any]:
        return {
            **super().stats(),
            "sources": {name: as_json(stats) for name, stats in self.monitor.stats().items()},
            "destinations": {
                name: {"open": name in self.breakers, "reason": self.breakers.get(name, "")}
                for name in self.settings.destinations
            },
            "closed": self.closed.stats(),
            "delivered": int(self.tally.value(metrics.EVENTS_TOTAL, status="delivered")),
        }

    def _preflight(self) -> None:
        self.monitor.preflight()

    def _send_stop(self) -> bool:
        return self.monitor.send_stop()

    def _lanes_at_work(self) -> set[int]:
        return self.monitor.lanes_at_work(self._specs[0].baton[0])

    def _query(self, statement: str, parameters: dict[str, Any]) -> list[str]:
        return self.monitor.query(statement, parameters)

    def _gauge(self) -> None:
        for name in self.settings.destinations:
            self.tally.set(metrics.BREAKER_OPEN, float(name in self.breakers), destination=name)
        self.closed.gauge(self.tally)
        self.monitor.gauge(self.tally)

    def _background_threads(self) -> Mapping[str, Callable[[threading.Event], None]]:
        housekeeper = Housekeeper.of(self.settings.sources, holder(self.settings.relay.id, self.instance))
        return {
            **super()._background_threads(),
            "progress": self._watch_progress,
            **({} if housekeeper is None else {"housekeeping": housekeeper.run}),
        }

    def _watch_progress(self, stopping: threading.Event) -> None:
        """Check progress also between HTTP requests: a stall shows only when two checks see the same event waiting."""
        while not stopping.wait(self.monitor.poll_interval):
            if self._has_problems or self.closed.all():
                self.monitor.forget()
            else:
                self.monitor.watch(self.tally)

    def _ended(self, *, all_lanes: bool) -> None:
        if all_lanes and self._threads:
            # While a lane may still be publishing, the ShedLock row must expire by itself.
            self.monitor.release_locks()
        self.monitor.close()

    def _take_report(self, report: dict[str, Any]) -> None:
        closed = as_causes(report["closed"], self._pending) if report["closed"] else {}
        super()._take_report({**report, "causes": {**report["causes"], **closed}})
        self._open_breakers[report["lane"]] = dict(report["breakers"])
        self.closed.take(report["lane"], report["closed"])
        self._lane_problems[report["lane"]] = [redact(problem) for problem in report["problems"]]

    def _pending(self) -> int:
        return sum(one.pending for one in self.monitor.stats().values() if isinstance(one, Stats))
