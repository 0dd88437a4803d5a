"""How long a healthy relay may make no progress, derived from its settings; readiness fails only beyond that."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from outspark import contracts
from outspark.config.settings import Settings, SourceSettings
from outspark.hosting.spec import LEAD

SLACK = 1.0
"""Seconds for the work before and after the publishing of a batch."""
START = 30.0
"""Seconds that Spark may take to start the first lanes."""
POLLS = 5
"""Progress checks per health check interval."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    settings: Settings
    in_order: bool
    """Do all destinations keep the order of a batch, so that each gets the whole batch in one call?"""

    @property
    def interval(self) -> float:
        return self.settings.server.health_check_interval.total_seconds()

    @property
    def poll_interval(self) -> float:
        return self.interval / POLLS

    def without_owner(self, source: SourceSettings) -> float:
        """How long slots may be without an owner: short enough that it is reported within one health check interval."""
        lock = contracts.get(source.contract).lock_at_most(source)
        if lock is not None:
            # Another relay may hold the ShedLock row, and that of a crashed relay lasts until it expires.
            return lock.total_seconds() + self.interval
        return self.interval - 2 * self.poll_interval

    @property
    def silent(self) -> float:
        """How long a lane may send no query to its database: it publishes, or sleeps until the next poll."""
        sources = self.settings.sources.values()
        sleeps = max((source.poll_interval.total_seconds() for source in sources), default=0.0)
        proved = self._longest + self.settings.relay.hold.total_seconds()
        in_turn = self.in_order or any(source.ordering == "none" for source in sources)
        publishes = min(self._all, proved) if in_turn else proved
        if any(source.ordering == "none" for source in sources):
            # Without slots the lane proves no ownership between one destination and the next.
            publishes = max(publishes, self._all)
        return max(self.interval, sleeps, publishes + SLACK)

    def undelivered(self, source: SourceSettings) -> float:
        """How long the next event may wait: a lane may spend a whole batch on each of its sources."""
        batch = self._all
        if source.ordering == "key" and not self.in_order:
            # The events of one key are published one after the other, until half of the lease has passed.
            batch = source.lease_timeout.total_seconds() / 2 + self._longest
        batches = batch * len(self.settings.sources)
        return max(self.interval, batches + source.poll_interval.total_seconds() + SLACK)

    def unclaimed(self, source: SourceSettings) -> float:
        """How long the next event may wait while no event of its source is in flight."""
        if len(self.settings.sources) > 1:
            # The lane may be working on another source.
            return self.undelivered(source)
        return max(self.interval, source.poll_interval.total_seconds() + SLACK)

    def undelivered_without_schedule(self, source: SourceSettings) -> float:
        """How long the next message may wait where the table does not say whether it is in backoff."""
        reports = 2 * (self.settings.hosting.shift.total_seconds() + LEAD)
        waits = source.retry.max_delay.total_seconds() * (1 + source.retry.jitter)
        return self.undelivered(source) + waits + reports

    @property
    def _longest(self) -> float:
        return max(self._timeouts(), default=0.0)

    @property
    def _all(self) -> float:
        return sum(self._timeouts())

    def _timeouts(self) -> Collection[float]:
        return [one.publish_timeout.total_seconds() for one in self.settings.destinations.values()]
