"""Relays hosted as Spark hosts them: each shift of a lane in a process of its own, the next one started early."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import psycopg

from outspark.config.settings import Settings
from outspark.database.names import TableName
from outspark.database.shedlock import RELAY, ShedLock, holder
from outspark.delivery.destination import Destination
from outspark.hosting import control
from outspark.relay.lane import Lane
from outspark.relay.spec import RelayLaneSpec, assign_slots
from tests.history import variants
from tests.history.passing import open_journal_publisher
from tests.history.publisher import PUBLISH_TIMEOUT, Conduct, JournalPublisher
from tests.waiting import wait_for

# Forked from a server that has everything imported: a lane starts in milliseconds, and its parent reaps it at once.
# A broker's client that is not installed is left out by itself.
processes = multiprocessing.get_context("forkserver")
PRELOADED = [
    "tests.history.hosting",
    *(f"outspark.brokers.{broker}" for broker in ("kafka", "rabbitmq", "redis", "http", "nats")),
]
processes.set_forkserver_preload(PRELOADED)

STAMP = "tests.history.hosting:stamp"
_publisher: JournalPublisher | None = None


def stamp(event: Any) -> Any:
    """The transform of every source here; in a lane's process it belongs to the publisher of that process."""
    assert _publisher is not None
    return _publisher.stamp(event)


def run_lane(spec: RelayLaneSpec, process: str, conduct: Conduct, variant: str | None) -> None:
    global _publisher
    if variant is not None:
        variants.ALL[variant]()
    _publisher = open_journal_publisher(process, conduct)
    Lane(spec, {"journal": Destination("journal", _publisher, PUBLISH_TIMEOUT)}).run()
    _publisher.close()


def settings_for(
    url: str, hosting: Mapping[str, Any], relay: Mapping[str, Any], source: Mapping[str, Any]
) -> Settings:
    """Quick in everything, so that a short history holds many retries, hand-overs and crashes."""
    return Settings.model_validate(
        {
            "relay": {"id": "test", "hold": "200ms", "grace": "500ms", **relay},
            "hosting": {"shift": "600s", **hosting},
            "sources": {
                "outbox": {
                    "url": url,
                    "transform": STAMP,
                    "slots": 4,
                    "batch_size": 20,
                    "poll_interval": "50ms",
                    "retry": {"base_delay": "50ms", "max_delay": "200ms", "max_attempts": 5},
                    **source,
                }
            },
            "destinations": {"journal": {"type": "null"}},
        }
    )


class Hosted(Protocol):
    """A relay of any make, as a play needs it."""

    @property
    def lanes(self) -> int: ...

    @property
    def killed(self) -> set[str]:
        """Names of the processes that ended by SIGKILL."""
        ...

    def tick(self) -> None:
        """Start what should run and does not."""
        ...

    def kill(self, lane: int) -> None: ...

    def stop(self) -> None:
        """In good order; the next `tick` starts it again."""
        ...

    def abandon(self) -> None: ...


@dataclass(slots=True)
class Shift:
    name: str
    process: BaseProcess
    started: float


@dataclass(slots=True)
class Relay:
    """One run of one relay. `tick` is its driver: it starts what is missing and what is next."""

    settings: Settings
    instance: str
    conduct: Conduct
    variant: str | None = None
    killed: set[str] = field(default_factory=set)
    _lanes: dict[int, list[Shift]] = field(default_factory=dict)
    _shifts: int = 0

    @property
    def lanes(self) -> int:
        return self.settings.hosting.lanes

    def tick(self) -> None:
        for spec in assign_slots(self.settings, self.instance, {}):
            shifts = self._lanes[spec.lane] = self._living(spec.lane)
            length = self.settings.hosting.shift.total_seconds()
            if not shifts or time.monotonic() - shifts[-1].started > length:
                shifts.append(self._start(spec))

    def kill(self, lane: int) -> None:
        """SIGKILL whatever hosts the lane now."""
        for shift in self._living(lane):
            shift.process.kill()
            shift.process.join()
        self._lanes[lane] = self._living(lane)

    def stop(self) -> None:
        """As the driver does it: say so on the channel, and wait for the batches in flight."""
        channel = assign_slots(self.settings, self.instance, {})[0].channel
        url = self.settings.sources["outbox"].url.get_secret_value()
        with psycopg.connect(url, autocommit=True) as conn:

            def ended() -> bool:
                # A shift that was only just starting may not have listened yet.
                control.notify(conn, channel, control.STOP)
                return not any(self._living(lane) for lane in self._lanes)

            wait_for(ended, timeout=30, what=f"the end of {self.instance}")
            self._release_lock(conn)
        self._lanes.clear()

    def _release_lock(self, conn: psycopg.Connection[Any]) -> None:
        source = self.settings.sources["outbox"]
        if source.contract == "jeap":
            held = holder(self.settings.relay.id, self.instance)
            ShedLock(conn, TableName("shedlock"), RELAY, held, source.own.lock_at_most).release()

    def abandon(self) -> None:
        """At the end of a test, whatever happened in it."""
        for shift in (shift for shifts in self._lanes.values() for shift in shifts):
            shift.process.kill()
            shift.process.join()

    def _start(self, spec: RelayLaneSpec) -> Shift:
        self._shifts += 1
        name = f"{self.instance}.{spec.lane}.{self._shifts}"
        process = processes.Process(
            target=run_lane,
            args=(spec.for_shift(self._shifts, spec.hosting.shift), name, self.conduct, self.variant),
            daemon=True,
        )
        process.start()
        return Shift(name, process, time.monotonic())

    def _living(self, lane: int) -> list[Shift]:
        living = []
        for shift in self._lanes.get(lane, []):
            code = shift.process.exitcode
            if code is None:
                living.append(shift)
            elif code == -signal.SIGKILL:
                self.killed.add(shift.name)
            elif code != 0:
                raise AssertionError(f"lane process {shift.name} crashed with exit code {code}")
        return living
