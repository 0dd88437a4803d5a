"""The course of the demo: wait for relay and inbox, open the shop, let lanes be killed, drain, and prove."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from outspark.contracts.maintenance import Stats
from outspark.errors import OutsparkError
from outspark.tools.demo import billing, report, shop
from outspark.tools.demo.application import LANES, SLOTS, Application
from outspark.tools.demo.crash import Crash
from outspark.tools.demo.inbox_lanes import Workers
from outspark.tools.demo.proof import prove
from outspark.tools.demo.relay_lanes import Lanes
from outspark.tools.demo.report import Billing, Incident, Report
from outspark.tools.demo.screen import Screen
from outspark.tools.demo.setup import Setup
from outspark.tools.demo.shop import Shop
from outspark.tools.demo.snapshot import Snapshots

TICK = 0.15
START_TIMEOUT = 180.0
STOP_TIMEOUT = 30.0
STALLED = 30.0
"""Seconds without an arrival after which the rest counts as lost."""
KILL_IN_RELAY, KILL_IN_INBOX = 0.4, 0.6
"""Shares of the writing time."""
_ENDINGS = {"relay": "gave its slots back and ended", "inbox": "finished its batches and ended"}


@dataclass(frozen=True, slots=True)
class Plan:
    seconds: float = 20.0
    rate: float = 400.0
    kill: bool = True
    keep: bool = False


def run_scenario(setup: Setup, plan: Plan, screen: Screen) -> Report:
    """Raises OutsparkError when the relay or the inbox does not start or ends by itself."""
    with ExitStack() as stack:
        lanes = stack.enter_context(setup.lanes())
        workers = None if setup.inbox is None else stack.enter_context(setup.workers())
        return _Scenario(setup, plan, screen, lanes, workers).run()


class _Scenario:
    def __init__(
        self, setup: Setup, plan: Plan, screen: Screen, lanes: Lanes, workers: Workers | None
    ) -> None:
        self._setup, self._plan, self._screen = setup, plan, screen
        self._lanes, self._workers = lanes, workers
        self._shop = Shop(setup.postgres.url(), rate=plan.rate, seconds=plan.seconds)
        self._snapshots = Snapshots(setup, self._shop, lanes, workers)
        self._phase = ""

    def run(self) -> Report:
        self._await_applications()
        try:
            self._let_work()
        finally:
            self._shop.close()
        self._drain()
        self._drain_inbox()
        if not self._plan.keep:
            self._stop_applications()
        return self._report()

    def _await_applications(self) -> None:
        self._phase = "Spark is starting"
        relay, inbox = self._setup.relay, self._setup.inbox
        if not self._watch(lambda: len(self._lanes.slots()) == SLOTS and relay.ready(), START_TIMEOUT):
            raise OutsparkError(f"the relay did not own all slots within {START_TIMEOUT:g} s")
        self._setup.milestone(f"the relay runs on Spark; its lanes own all {SLOTS} slots")
        workers = self._workers
        if workers is None or inbox is None:
            return
        if not self._watch(lambda: workers.all_here() and inbox.ready(), START_TIMEOUT):
            raise OutsparkError(f"the inbox did not have all its lanes within {START_TIMEOUT:g} s")
        self._setup.milestone(f"the inbox runs on Spark; {LANES} lanes consume, {LANES} call the handler")

    def _let_work(self) -> None:
        plan, setup = self._plan, self._setup
        self._phase = "the shop is open"
        self._shop.start()
        setup.milestone(f"the shop is open: {plan.rate:g} events/s for {plan.seconds:g} s")
        if plan.kill:
            crashes = self._snapshots.crashes
            crashes["relay"] = Crash("relay", setup.lanes, plan.seconds * KILL_IN_RELAY)
            if self._workers is not None:
                crashes["inbox"] = Crash("inbox", setup.workers, plan.seconds * KILL_IN_INBOX)
        self._watch(lambda: not self._shop.at_work)
        setup.milestone(
            f"the shop is closed: {report.count(len(self._shop.committed_at), 'event')} committed, "
            f"{len(self._shop.rolled_back):,} rolled back"
        )
        self._phase = "waiting for the killed lane"
        self._watch(lambda: all(crash.over for crash in self._snapshots.crashes.values()))
        self._tell_news()

    def _drain(self) -> None:
        self._phase = "draining"
        committed, arrived = self._shop.committed_at, self._setup.arrivals.first_at
        self._watch_progress(lambda: len(arrived), lambda: committed.keys() <= arrived.keys())
        # The settle comes a moment after the arrival.
        stats = self._lanes.maintenance.stats
        self._watch(lambda: _waiting(stats()) == 0, STALLED if committed.keys() <= arrived.keys() else 0)

    def _drain_inbox(self) -> None:
        workers = self._workers
        if workers is None:
            return
        self._phase = "billing"
        stats = workers.maintenance.stats
        wanted = len(self._shop.committed_at)

        def through() -> bool:
            now = stats(exact=True)
            return _waiting(now) == 0 and (now.delivered or 0) + now.dead >= wanted

        self._watch_progress(lambda: stats(exact=True).delivered or 0, through)

    def _stop_applications(self) -> None:
        """Before the count, so that nothing can arrive after it. Both in parallel, which halves the time."""
        applications = self._setup.applications
        self._phase = f"stopping the {' and the '.join(one.kind for one in applications)}"
        self._screen.show(self._snapshots.take(self._phase))
        with ThreadPoolExecutor(len(applications)) as pool:
            for one, seconds in zip(applications, pool.map(_stop, applications), strict=True):
                self._setup.milestone(f"the {one.kind} {_ENDINGS[one.kind]} in {seconds:.1f} s")

    def _report(self) -> Report:
        arrivals = self._setup.arrivals
        traffic = self._setup.consumer.traffic()
        self._watch(lambda: len(arrivals.all) >= traffic.stored, STALLED)
        self._phase = "done"
        self._screen.show(self._snapshots.take(self._phase))
        return Report(
            broker=self._setup.broker.title,
            broker_drops=self._setup.broker.drops_known_ids,
            proof=prove(shop.history(self._lanes.conn), self._shop.rolled_back, arrivals.all),
            outbox=self._lanes.maintenance.stats(exact=True),
            traffic=traffic,
            received=len(arrivals.all),
            latency=report.latency(self._shop.committed_at, arrivals.first_at),
            incident=self._incident("relay"),
            wanted_incident=self._plan.kill,
            seconds=self._setup.clock,
            billing=None if self._workers is None else self._billing(self._workers),
        )

    def _billing(self, workers: Workers) -> Billing:
        stats = workers.maintenance.stats(exact=True)
        return Billing(billing.compare(workers.conn), stats, self._incident("inbox"))

    def _incident(self, kind: str) -> Incident | None:
        crash = self._snapshots.crashes.get(kind)
        return None if crash is None else crash.incident()

    def _watch_progress(self, count: Callable[[], int], over: Callable[[], bool]) -> None:
        """Until it is over, or nothing has moved for too long."""
        counted, deadline = -1, 0.0

        def done() -> bool:
            nonlocal counted, deadline
            if (now := count()) != counted:
                counted, deadline = now, time.monotonic() + STALLED
            return over() or time.monotonic() > deadline

        self._watch(done)

    def _watch(self, until: Callable[[], bool], timeout: float = float("inf")) -> bool:
        """Shows snapshots until `until` is true; False when it was not within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not until():
            if (culprit := self._setup.culprit()) is not None:
                raise OutsparkError(f"the {culprit.kind} ended by itself")
            if time.monotonic() >= deadline:
                return False
            self._tell_news()
            self._screen.show(self._snapshots.take(self._phase))
            time.sleep(TICK)
        return True

    def _tell_news(self) -> None:
        for crash in self._snapshots.crashes.values():
            while not crash.news.empty():
                text, bad = crash.news.get()
                self._setup.milestone(text, bad=bad)


def _stop(application: Application) -> float:
    """Its duration in seconds."""
    began = time.monotonic()
    application.stop(STOP_TIMEOUT)
    return time.monotonic() - began


def _waiting(stats: Stats) -> int:
    return stats.pending + stats.delivering
