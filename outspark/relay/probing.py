"""Probes what is closed: one event at a time goes to a topic, or is one of a type, whose breaker is open.

The breakers belong to the destinations and to the guard; the events that wait for them are in `BlockedKeys`. A probe
answers two questions: does the topic or the type work again, and if not, may the event itself be at fault?
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from outspark.delivery.dead_guard import LONGEST_PAUSE, DeadGuard
from outspark.delivery.destination import Block, Breaker, Destination
from outspark.delivery.dispatcher import Dispatched, Dispatcher
from outspark.event import Event
from outspark.outcome import Retry
from outspark.relay.blocked_keys import BlockedKeys
from outspark.relay.handover import DestinationBacklog
from outspark.relay.settlements import waits_for
from outspark.relay.source import NOTHING, Batch


@dataclass(slots=True)
class Probing:
    """`claim` claims one event by its id."""

    keys: BlockedKeys
    dispatcher: Dispatcher
    guard: DeadGuard | None
    claim: Callable[[str], Batch]
    probed: Block | None = None
    """What the batch at hand probes."""

    def next(self) -> Batch:
        """One event for a topic or a type whose probe is due."""
        for block in self.keys.awaited():
            probe_at = self.dispatcher.next_probe(block)
            if probe_at is None or probe_at > time.monotonic():
                continue
            while (event := self.keys.next_to_probe(block)) is not None:
                batch = self.claim(event)
                if batch.events:
                    self.probed = block
                    return batch
                self.keys.probe_gone(block, event)
            # No event that is known is left. The next claim in order finds others; the breaker lets one of them go out.
            self.keys.breaker_closed(block)
        return NOTHING

    def excuse(self, event: Event, dispatched: Dispatched) -> None:
        """A probe goes out before its own wait is over, so a failure counts no attempt while the breaker is open."""
        if (block := self.probed) is None:
            return
        breaker = self.dispatcher.breaker(block)
        [outcome], [destination] = dispatched.outcomes, dispatched.destinations
        if breaker is None or not isinstance(outcome, Retry):
            return
        if (other := self._closed_before(block, event, outcome, destination)) is not None:
            # The event was not sent, so it says nothing; both breakers are to be probed together.
            breaker.probe_at = other
            return
        if breaker.is_due():
            breaker.postpone(outcome.error if block.topic is not None else breaker.reason)
        if not outcome.counted:
            return
        if breaker.is_patient():
            # A topic that answers so again and again is there, and this event is at fault.
            if block.topic is not None:
                self.dispatcher.close(block)
            return
        dispatched.outcomes = [replace(outcome, counted=False, topic=block.topic)]
        if block.type is not None:
            dispatched.destinations = [None]

    def free_awaited(self) -> None:
        """Let events go on whose breaker has closed; the probe may have been that of another source."""
        for block in self.keys.awaited():
            if not self.dispatcher.is_open(block):
                self.keys.breaker_closed(block)

    def drop_idle(self) -> None:
        """Forget breakers that nothing waits for. Probes may be put off for long, so those awaited here are marked."""
        now = time.monotonic()
        for block in self.keys.awaited():
            if (breaker := self.dispatcher.breaker(block)) is not None:
                breaker.wanted_at = now
        for destination in self.dispatcher.destinations.values():
            destination.drop_idle()
        if self.guard is not None:
            self.guard.drop_idle()

    def times(self) -> list[float | None]:
        """When the next probes of what is awaited here are due."""
        return [self.dispatcher.next_probe(block) for block in self.keys.awaited()]

    def backlogs(self) -> list[DestinationBacklog]:
        """All that is closed, and what waits for it, for the next shift."""
        return [self._backlog(block) for block in self.keys.awaited() | self.dispatcher.closed()]

    def inherit(self, backlog: DestinationBacklog, age: float) -> None:
        """What was closed for the last shift stays closed for this one, and its probes go on in their rhythm."""
        block = Block(backlog.destination, backlog.topic, backlog.type)
        self._presume(block, backlog, age)
        self.keys.inherited(block, backlog)

    def _closed_before(
        self, block: Block, event: Event, outcome: Retry, destination: Destination | None
    ) -> float | None:
        """When the next probe is due of another breaker that kept this event from going out."""
        if outcome.counted:
            return None
        found = waits_for(event, outcome, destination)
        if found == block or not self.dispatcher.is_open(found):
            return None
        closed = self.dispatcher.breaker(found) or destination
        return closed.next_probe() if closed is not None else None

    def _backlog(self, block: Block) -> DestinationBacklog:
        breaker = self.dispatcher.breaker(block)
        closed = breaker or self.dispatcher.destinations[block.destination]
        keys, types, probes = self.keys.waiting_for(block)
        return DestinationBacklog(
            **block._asdict(),
            fault=breaker.fault if breaker is not None else None,
            probes=probes,
            since=closed.since,
            reason=closed.reason,
            probe_in=(closed.next_probe() or 0.0) - time.monotonic(),
            pause=closed.pause,
            keys=keys,
            types=types,
        )

    def _presume(self, block: Block, backlog: DestinationBacklog, age: float) -> None:
        probe_at = time.monotonic() + backlog.probe_in - age
        breaker = Breaker(backlog.reason, backlog.since, backlog.pause, backlog.fault, probe_at=probe_at)
        if block.type is not None:
            if self.guard is not None:
                breaker.longest = LONGEST_PAUSE
                self.guard.presume(block.type, breaker)
            return
        destination = self.dispatcher.destinations[block.destination]
        if block.topic is not None:
            destination.topics.setdefault(block.topic, breaker)
        else:
            destination.presume_down(backlog.reason, backlog.probe_in - age, backlog.pause)
