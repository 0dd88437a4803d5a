"""The state of the demo at one moment: the shop, the relay, the consumer, and the inbox if there is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from outspark.tools.demo import report
from outspark.tools.demo.crash import Crash
from outspark.tools.demo.inbox_lanes import Worker, Workers
from outspark.tools.demo.relay_lanes import Lanes
from outspark.tools.demo.screen import Billing, Lane, Snapshot
from outspark.tools.demo.setup import Setup
from outspark.tools.demo.shop import Shop

RECENT = 500
"""Arrivals over which the screen shows the median."""


@dataclass(slots=True)
class Snapshots:
    """For the main thread: `lanes` and `workers` have a connection each."""

    setup: Setup
    shop: Shop
    lanes: Lanes
    workers: Workers | None
    crashes: dict[str, Crash] = field(default_factory=dict)
    """By the application whose lane they kill."""

    def take(self, phase: str) -> Snapshot:
        stats, arrivals = self.lanes.maintenance.stats(exact=True), self.setup.arrivals
        return Snapshot(
            at=self.setup.clock,
            phase=phase,
            committed=len(self.shop.committed_at),
            rolled_back=len(self.shop.rolled_back),
            delivered=stats.delivered or 0,
            waiting=stats.pending + stats.delivering,
            lag=stats.due_age.total_seconds() if stats.due_age else 0.0,
            arrived=len(arrivals.first_at),
            twice=len(arrivals.all) - len(arrivals.first_at),
            latency=self._median(),
            lanes=self._relay_lanes(),
            billing=None if self.workers is None else self._billing(self.workers),
        )

    def _billing(self, workers: Workers) -> Billing:
        stats = workers.maintenance.stats(exact=True)
        return Billing(
            handled=stats.delivered or 0,
            waiting=stats.pending + stats.delivering,
            bills=workers.bills(),
            lanes=tuple(self._inbox_lane(lane, hosts) for lane, hosts in _by_lane(workers.hosts())),
        )

    def _median(self) -> float | None:
        arrivals = self.setup.arrivals
        recent = {fact.id: arrivals.first_at[fact.id] for fact in arrivals.all[-RECENT:]}
        seen = report.latency(self.shop.committed_at, recent)
        return None if seen is None else seen.p50

    def _relay_lanes(self) -> tuple[Lane, ...]:
        slots = Counter(slot.owner for slot in self.lanes.slots())
        hosts = sorted(slots.items(), key=lambda host: (host[0].lane, host[0].pid))
        return tuple(
            Lane(f"{owner.lane}: killed", killed=True)
            if self._is_down(owner.pid)
            else Lane(f"{owner.lane}: {count} slots in worker {owner.pid}")
            for owner, count in hosts
        )

    def _inbox_lane(self, lane: str, hosts: Sequence[Worker]) -> Lane:
        """At a hand-over it has two hosts; the one that came last is shown."""
        pid = hosts[0].pid
        return Lane(f"{lane}: killed", killed=True) if self._is_down(pid) else Lane(f"{lane}: {pid}")

    def _is_down(self, pid: int) -> bool:
        return any(crash.down is not None and crash.down.pid == pid for crash in self.crashes.values())


def _by_lane(hosts: Sequence[Worker]) -> list[tuple[str, list[Worker]]]:
    names = sorted({host.lane for host in hosts})
    return [(name, [host for host in hosts if host.lane == name]) for name in names]
