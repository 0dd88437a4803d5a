"""The course of the demo: wait for the relay, open the shop, let a lane be killed, drain, and prove."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from outspark.demo import report, shop
from outspark.demo.lanes import Lanes
from outspark.demo.proof import prove
from outspark.demo.relay import SLOTS
from outspark.demo.report import Incident, Report
from outspark.demo.shop import Shop
from outspark.demo.stage import Stage
from outspark.demo.strike import Strike
from outspark.demo.view import Glance, Lane, Screen
from outspark.errors import OutsparkError

TICK = 0.15
START_TIMEOUT = 180.0
STOP_TIMEOUT = 30.0
STALLED = 30.0
"""Seconds without an arrival after which the rest counts as lost."""
KILL_AFTER = 0.4
"""Share of the writing time."""
RECENT = 500
"""Arrivals that the median on the screen is taken over."""


@dataclass(frozen=True, slots=True)
class Plan:
    seconds: float = 20.0
    rate: float = 400.0
    kill: bool = True
    keep: bool = False


def play(stage: Stage, plan: Plan, screen: Screen) -> Report:
    """Raises OutsparkError when the relay does not start or ends by itself."""
    with stage.lanes() as lanes:
        return _Play(stage, plan, screen, lanes).perform()


class _Play:
    def __init__(self, stage: Stage, plan: Plan, screen: Screen, lanes: Lanes) -> None:
        self._stage, self._plan, self._screen, self._lanes = stage, plan, screen, lanes
        self._shop = Shop(stage.postgres.url(), rate=plan.rate, seconds=plan.seconds)
        self._strike: Strike | None = None
        self._phase = ""

    def perform(self) -> Report:
        self._await_relay()
        try:
            incident = self._let_work()
        finally:
            self._shop.close()
        self._drain()
        if not self._plan.keep:
            self._stop_relay()
        return self._report(incident)

    def _await_relay(self) -> None:
        self._phase = "Spark is starting"
        up = self._watch(
            lambda: len(self._lanes.slots()) == SLOTS and self._stage.relay.ready(), START_TIMEOUT
        )
        if not up:
            raise OutsparkError(f"the relay did not own all slots within {START_TIMEOUT:g} s")
        self._stage.milestone(f"the relay runs on Spark; its lanes own all {SLOTS} slots")

    def _let_work(self) -> Incident | None:
        plan = self._plan
        self._phase = "the shop is open"
        self._shop.start()
        self._stage.milestone(f"the shop is open: {plan.rate:g} events/s for {plan.seconds:g} s")
        if plan.kill:
            self._strike = Strike(self._stage, plan.seconds * KILL_AFTER)
        self._watch(lambda: not self._shop.at_work)
        self._stage.milestone(
            f"the shop is closed: {report.count(len(self._shop.committed_at), 'event')} committed, "
            f"{len(self._shop.rolled_back):,} rolled back"
        )
        if self._strike is None:
            return None
        self._phase = "waiting for the killed lane"
        self._watch(lambda: self._strike is None or self._strike.over)
        return self._strike.incident()

    def _drain(self) -> None:
        self._phase = "draining"
        committed, arrived = self._shop.committed_at, self._stage.consumer.arrived_at
        counted, deadline = -1, 0.0

        def over() -> bool:
            nonlocal counted, deadline
            if len(arrived) != counted:
                counted, deadline = len(arrived), time.monotonic() + STALLED
            return committed.keys() <= arrived.keys() or time.monotonic() > deadline

        self._watch(over)
        # The settle comes a moment after the arrival.
        self._watch(lambda: self._waiting() == 0, STALLED if committed.keys() <= arrived.keys() else 0)

    def _stop_relay(self) -> None:
        """Before the count, so that nothing can arrive after it."""
        self._phase = "the relay is stopping"
        self._screen.show(self._glance())
        began = time.monotonic()
        self._stage.relay.stop(STOP_TIMEOUT)
        self._stage.milestone(f"the relay gave its slots back and ended in {time.monotonic() - began:.1f} s")

    def _report(self, incident: Incident | None) -> Report:
        consumer = self._stage.consumer
        traffic = consumer.traffic()
        self._watch(lambda: len(consumer.arrivals) >= traffic.stored, STALLED)
        self._phase = "done"
        self._screen.show(self._glance())
        return Report(
            broker=self._stage.broker.name,
            broker_drops=self._stage.broker.drops_known_ids,
            proof=prove(shop.history(self._lanes.conn), self._shop.rolled_back, consumer.arrivals),
            outbox=self._lanes.maintenance.stats(exact=True),
            traffic=traffic,
            received=len(consumer.arrivals),
            latency=report.latency(self._shop.committed_at, consumer.arrived_at),
            incident=incident,
            wanted_incident=self._plan.kill,
            seconds=self._stage.clock,
        )

    def _watch(self, until: Callable[[], bool], timeout: float = float("inf")) -> bool:
        """Shows what happens until it is true; False when it was not within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not until():
            if self._stage.relay.failed:
                raise OutsparkError("the relay ended by itself")
            if time.monotonic() >= deadline:
                return False
            while self._strike is not None and not self._strike.news.empty():
                text, bad = self._strike.news.get()
                self._stage.milestone(text, bad=bad)
            self._screen.show(self._glance())
            time.sleep(TICK)
        return True

    def _waiting(self) -> int:
        stats = self._lanes.maintenance.stats()
        return stats.pending + stats.delivering

    def _glance(self) -> Glance:
        stats, consumer = self._lanes.maintenance.stats(exact=True), self._stage.consumer
        return Glance(
            at=self._stage.clock,
            phase=self._phase,
            committed=len(self._shop.committed_at),
            rolled_back=len(self._shop.rolled_back),
            delivered=stats.delivered or 0,
            waiting=stats.pending + stats.delivering,
            lag=stats.due_age.total_seconds() if stats.due_age else 0.0,
            arrived=len(consumer.arrived_at),
            twice=len(consumer.arrivals) - len(consumer.arrived_at),
            latency=self._median(),
            lanes=self._hosts(),
        )

    def _median(self) -> float | None:
        recent = [fact.id for fact in self._stage.consumer.arrivals[-RECENT:]]
        seen = report.latency(
            self._shop.committed_at, {id: self._stage.consumer.arrived_at[id] for id in recent}
        )
        return None if seen is None else seen.p50

    def _hosts(self) -> tuple[Lane, ...]:
        down = self._strike.down if self._strike is not None else None
        slots = Counter(slot.owner for slot in self._lanes.slots())
        hosts = [
            Lane(owner.lane, owner.pid, count, killed=down is not None and owner.pid == down.pid)
            for owner, count in slots.items()
        ]
        return tuple(sorted(hosts, key=lambda lane: (lane.number, lane.pid)))
