"""How long a relay that is well may stand still, by its settings: less is no reason to call it not ready."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from outspark.config.settings import Settings, SourceSettings
from outspark.hosting.spec import LEAD

SLACK = 1.0
"""Seconds for what is done before and after a batch is published."""
START = 30.0
"""Seconds that Spark may take to start the first lanes."""
POLLS = 5
"""Looks in each health interval."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    settings: Settings
    in_order: bool
    """Do all destinations keep the order of a batch, so that each gets all of it at once?"""

    @property
    def interval(self) -> float:
        return self.settings.server.health_check_interval.total_seconds()

    @property
    def poll_interval(self) -> float:
        return self.interval / POLLS

    def without_owner(self, source: SourceSettings) -> float:
        """Slots that nobody holds; so that it is told within an interval, whenever in it that begins."""
        if source.contract == "jeap":
            # A relay of another make may have the lock, and one that vanished has it until it runs out.
            return source.jeap.lock_at_most.total_seconds() + self.interval
        return self.interval - 2 * self.poll_interval

    @property
    def silent(self) -> float:
        """A lane that asks its database for nothing: it publishes, or sleeps until it is time to look again."""
        sources = self.settings.sources.values()
        sleeps = max((source.poll_interval.total_seconds() for source in sources), default=0.0)
        proved = self._longest + self.settings.relay.hold.total_seconds()
        in_turn = self.in_order or any(source.ordering == "none" for source in sources)
        publishes = min(self._all, proved) if in_turn else proved
        if any(source.ordering == "none" for source in sources):
            # Without slots there is nothing to prove between one destination and the next.
            publishes = max(publishes, self._all)
        return max(self.interval, sleeps, publishes + SLACK)

    def undelivered(self, source: SourceSettings) -> float:
        """The event that is next: each source that a lane has may take the time of a whole batch."""
        batch = self._all
        if source.ordering == "key" and not self.in_order:
            # Of each key one after the other, until half the lease is over.
            batch = source.lease_timeout.total_seconds() / 2 + self._longest
        batches = batch * len(self.settings.sources)
        return max(self.interval, batches + source.poll_interval.total_seconds() + SLACK)

    def unclaimed(self, source: SourceSettings) -> float:
        """The event that is next while no event of its source is in flight."""
        if len(self.settings.sources) > 1:
            # The lane may be at work on another source.
            return self.undelivered(source)
        return max(self.interval, source.poll_interval.total_seconds() + SLACK)

    def undelivered_without_schedule(self, source: SourceSettings) -> float:
        """The message that is next, where nothing tells whether it waits for its next try."""
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
