"""Inboxes hosted as Spark hosts them: each shift of a lane in a process of its own, the next one started early."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import psycopg

from outspark.config.settings import LogSettings
from outspark.errors import HandlerHung
from outspark.hosting import control
from outspark.inbox.intake import consumer
from outspark.inbox.lane import InboxLane, InboxLaneSpec
from outspark.observability import logs
from tests.history.hosting import PRELOADED, Shift, processes
from tests.history.inbox import handlers, variants
from tests.history.inbox.conduct import Conduct
from tests.history.inbox.feed import opener
from tests.waiting import wait_for

# A broker's client that is not installed is left out by itself.
_FEEDS = [f"outspark.brokers.{broker}" for broker in ("kafka", "nats")]
processes.set_forkserver_preload([*PRELOADED, "tests.history.inbox.hosting", *_FEEDS])

HUNG = 70
"""How a process ends whose handlers hang, as under Spark."""


def run_lane(spec: InboxLaneSpec, process: str, conduct: Conduct, variant: str | None) -> None:
    # With what belongs to each line, so that a history that fails can be read.
    logs.configure(LogSettings(level="warning"))
    if variant is not None:
        variants.BROKEN[variant]()
    handlers.prepare(process, conduct)
    setattr(consumer, "open_feed", opener(process, conduct))  # noqa: B010 - another function, of the same type
    try:
        InboxLane(spec).run()
    except HandlerHung:
        os._exit(HUNG)


@dataclass(slots=True)
class Host:
    """One run of some lanes. `tick` is its driver: it starts what is missing and what is next."""

    specs: Sequence[InboxLaneSpec]
    url: str
    conduct: Conduct
    variant: str | None = None
    killed: set[str] = field(default_factory=set)
    """Names of the processes that ended by SIGKILL."""
    _lanes: dict[int, list[Shift]] = field(default_factory=dict)
    _shifts: int = 0

    def lanes(self, task: Literal["consume", "handle"]) -> list[int]:
        return [spec.lane for spec in self.specs if spec.task == task]

    def tick(self) -> None:
        for spec in self.specs:
            shifts = self._lanes[spec.lane] = self._living(spec.lane)
            length = spec.hosting.shift.total_seconds()
            if not shifts or time.monotonic() - shifts[-1].started > length:
                shifts.append(self._start(spec))

    def kill(self, lane: int) -> None:
        """SIGKILL whatever hosts the lane now."""
        for shift in self._living(lane):
            shift.process.kill()
            shift.process.join()
        self._lanes[lane] = self._living(lane)

    def send(self, lane: int, number: signal.Signals) -> None:
        for shift in self._living(lane):
            assert shift.process.pid is not None
            os.kill(shift.process.pid, number)

    def stop(self) -> None:
        """As the driver does it: say so on the channel, and wait for the batches in flight."""
        with psycopg.connect(self.url, autocommit=True) as conn:

            def ended() -> bool:
                # A shift that was only just starting may not have listened yet.
                control.notify(conn, self.specs[0].channel, control.STOP)
                return not any(self._living(lane) for lane in self._lanes)

            wait_for(ended, timeout=40, what="the end of the lanes")
        self._lanes.clear()

    def abandon(self) -> None:
        """At the end of a test, whatever happened in it."""
        for shift in (shift for shifts in self._lanes.values() for shift in shifts):
            shift.process.kill()
            shift.process.join()

    def _start(self, spec: InboxLaneSpec) -> Shift:
        self._shifts += 1
        name = f"{spec.name}.{spec.task}.{spec.number}.{self._shifts}"
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
            elif code not in (0, HUNG):
                raise AssertionError(f"lane process {shift.name} crashed with exit code {code}")
        return living
