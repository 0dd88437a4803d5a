"""The right of a lane to publish the events of one source: its slots are its own, and the table's lock is ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outspark.database.shedlock import ShedLock
from outspark.errors import OwnershipLost
from outspark.relay.ownership import SlotOwnership

LOCK_MARGIN = 1.0
"""Seconds for which the lock has to hold beyond the longest publish."""


@dataclass(frozen=True, slots=True)
class LanePermit:
    source: str
    ownership: SlotOwnership | None
    lock: ShedLock | None
    """Where relays of other makes take turns with Outspark's."""
    longest_publish: float
    beat: Callable[[], None]
    """Called before each step and each publish, for a watchdog of the lane."""

    def check(self) -> None:
        """OwnershipLost if another owner has the slots, or another relay the lock. A publish cannot be fenced."""
        self.beat()
        if self.lock is not None and not self._holds(self.lock):
            raise self._lost(self.lock)
        if self.ownership is not None:
            self.ownership.prove()

    def may_work(self) -> bool:
        """A lane without the lock takes no slots either, so that the lanes of its holder can have all of them."""
        if self.lock is None or self._holds(self.lock):
            return True
        if self.ownership is not None and self.ownership.slots.epochs:
            raise self._lost(self.lock)
        return False

    def _holds(self, lock: ShedLock) -> bool:
        return lock.hold(self.longest_publish + LOCK_MARGIN)

    def _lost(self, lock: ShedLock) -> OwnershipLost:
        return OwnershipLost(f"the lock {lock.name} of {self.source} is another relay's now")
