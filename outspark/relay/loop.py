"""One source on one lane: look, claim, publish, settle, and look again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from outspark.database.arrays import Texts
from outspark.database.shedlock import ShedLock
from outspark.database.side_tables import Deliveries
from outspark.delivery.dead_guard import LONGEST_PAUSE, DeadGuard
from outspark.delivery.destination import Block, Breaker, Destination
from outspark.delivery.dispatcher import NOWHERE, Dispatched, Dispatcher
from outspark.errors import OwnershipLost
from outspark.event import Event
from outspark.observability import metrics
from outspark.outcome import DELIVERED, Held, Outcome, Retry
from outspark.relay.handover import MOST_KEYS, DestinationBacklog, HandoverNote
from outspark.relay.low_water import BEGINNING, LowWater
from outspark.relay.ownership import SlotOwnership
from outspark.relay.settle import Settler, waits_for
from outspark.relay.source import NOTHING, Batch, Source
from outspark.relay.waking import Doorbell, Polling

log = logging.getLogger(__name__)

CHORES_INTERVAL = 1.0
LOCK_MARGIN = 1.0
LONGEST_REAP_INTERVAL = 30.0
MOST_DUE = 20
"""Heads that are tried again at once: one that hangs costs the lane as long as its publisher waits for it."""
WIDEST = 8
"""Where nothing but events that wait is found, claims grow up to this many batches: what goes on stands behind them."""
ANY_NUMBER = 1 << 20
"""More than any claim asks for."""
RETRY_REST = 3.0
"""After heads were tried again, other events have the lane for so many times as long as that took."""


@dataclass(slots=True)
class SourceLoop:
    """With an ownership it works on the slots it owns; without one it competes for single events."""

    source: Source
    ownership: SlotOwnership | None
    dispatcher: Dispatcher
    settler: Settler
    waker: Polling | Doorbell
    low: LowWater
    token_prefix: str
    deliveries: Deliveries | None = None
    """Where events go to several destinations."""
    lock: ShedLock | None = None
    """Where relays of other makes take turns with ours."""
    guard: DeadGuard | None = None
    moved: Callable[[], None] | None = None
    """Called before each publish, for whoever watches that the lane moves."""
    _claims: int = 0
    _found: Batch = NOTHING
    """What the last look in order brought."""
    _next_chores: float = 0.0
    _next_reap: float = 0.0
    _width: int = 1
    """How many times as many events as a batch a claim in order asks for."""
    _fitting: int = ANY_NUMBER
    """No more events are asked for than twice as many as the last claim had room for: the others are only measured."""
    _again_after: float = 0.0
    """Not before this time is what failed tried again while there is other work: what hung once may hang again."""
    _trying_again: bool = False
    """Is the batch one of events that failed before?"""
    _probing: Block | None = None
    """What the batch is to probe."""
    _heads_next: bool = False
    """Probes and heads that are due take turns."""

    def step(self) -> int:
        """Look once and work on what is there; how many events were settled."""
        self.waker.before_poll()
        self._chores()
        self._claims += 1
        batch = self._next(f"{self.token_prefix}/{self._claims}")
        if not batch.events:
            self.waker.after_empty_poll()
            self._wake_in_time()
            return 0
        version = self.source.keys.version
        self._work(batch)
        saw_the_end = batch is self._found and self.low.saw_the_end
        self.waker.after_batch(more=not saw_the_end or self.source.keys.version != version)
        self._wake_in_time()
        # The next claim shall not find this one still in memory.
        self._found = NOTHING
        return len(batch.events)

    def warm(self) -> None:
        """Plan and run the statements of a normal batch once, on nothing."""
        statements = self.source.statements
        empty = ("slots", "blocked", "types", "topics", "topic_types")
        nothing = {**{name: [] for name in empty}, "low": BEGINNING, "limit": 0, "token": ""}
        self.source.conn.execute(statements.claim, nothing, binary=True)
        fence = {"token": "", "source": "", "slots": [], "epochs": []}
        self.source.conn.execute(statements.deliver_all, {"ids": [], "leased_at": None, **fence})
        self.low.prepare()

    def release(self) -> None:
        """Give the slots back in good order. The caller unlocks the session."""
        self.waker.release()
        if self.ownership is not None:
            self.ownership.leave(self._handover_note(self.ownership))

    def _work(self, batch: Batch) -> None:
        # The leases must outlive the publishing by far.
        budget = self.source.settings.lease_timeout.total_seconds() / 2
        been = self.deliveries.look_up([event.id for event in batch.events]) if self.deliveries else NOWHERE
        started = time.monotonic()
        dispatched = self.dispatcher.dispatch(batch.events, budget, self._prove, been)
        if self._trying_again:
            self._again_after = time.monotonic() + RETRY_REST * (time.monotonic() - started)
        if self._probing is not None:
            self._excuse(self._probing, batch.events[0], dispatched)
        if (timer := self.source.statements.publish_timer) is not None:
            took = [time.monotonic() - started] * dispatched.outcomes.count(DELIVERED)
            self.source.tally.observe_many(timer.name, took, source=self.source.name, **timer.labels)
        through = self.settler.settle(batch, dispatched, been)
        if batch is self._found:
            self._width = self._widened() if _waits(dispatched.outcomes) else 1
        if through and batch is self._found:
            self.low.passed(batch.events[-1].created_at)
        if self.ownership is not None and self.ownership.suspects:
            self.ownership.clear_blocked()

    def _prove(self) -> None:
        if self.moved is not None:
            self.moved()
        if self.lock is not None and not self.lock.hold(self._longest_publish()):
            raise self._lost_lock()
        if self.ownership is not None:
            self.ownership.prove()

    def _longest_publish(self) -> float:
        destinations = self.dispatcher.destinations.values()
        return max((destination.timeout for destination in destinations), default=0.0) + LOCK_MARGIN

    def _may_work(self) -> bool:
        """Whoever does not hold the lock takes no slots either, so that its holder can have them all."""
        if self.lock is None or self.lock.hold(self._longest_publish()):
            return True
        if self.ownership is not None and self.ownership.slots.epochs:
            raise self._lost_lock()
        return False

    def _lost_lock(self) -> OwnershipLost:
        assert self.lock is not None
        return OwnershipLost(f"the lock {self.lock.name} of {self.source.name} is another relay's now")

    def _next(self, token: str) -> Batch:
        self._trying_again, self._probing = False, None
        if self.dispatcher.all_down():
            return NOTHING
        if self.ownership is not None:
            if not self.ownership.active:
                return NOTHING
            suspect = self.ownership.next_suspect()
            if suspect is not None:
                return self._claim_ids([suspect], token)
        rested = time.monotonic() >= self._again_after
        batch = self._claim_again(token) if rested else NOTHING
        if not batch.events:
            batch = self._claim(token)
        if not batch.events and not rested:
            batch = self._claim_again(token)
        return batch

    def _claim_again(self, token: str) -> Batch:
        """A few events that did not pass before."""
        ways = (
            (self._claim_due, self._claim_probe) if self._heads_next else (self._claim_probe, self._claim_due)
        )
        for claim in ways:
            batch = claim(token)
            if batch.events:
                self._trying_again, self._heads_next = True, claim == self._claim_probe
                return batch
        return NOTHING

    def _claim_probe(self, token: str) -> Batch:
        """One event for a topic or a type whose breaker is open, when it is time to try."""
        keys = self.source.keys
        for block in keys.awaited():
            probe_at = self.dispatcher.next_probe(block)
            if probe_at is None or probe_at > time.monotonic():
                continue
            while (event := keys.next_to_probe(block)) is not None:
                batch = self._claim_ids([event], token)
                if batch.events:
                    self._probing = block
                    return batch
                keys.forget_probe(block, event)
            # None that is known is left. The next claim in order finds others; the breaker lets one of them through.
            keys.lift(block)
        return NOTHING

    def _excuse(self, block: Block, event: Event, dispatched: Dispatched) -> None:
        """A probe goes out before its own wait is over, so it does not count while what it probes stays closed."""
        breaker = self.dispatcher.breaker(block)
        [outcome], [destination] = dispatched.outcomes, dispatched.destinations
        if breaker is None or not isinstance(outcome, Retry):
            return
        if (other := self._closed_before(block, event, outcome, destination)) is not None:
            # It was not sent, so it says nothing; they are to be probed together.
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

    def _closed_before(
        self, block: Block, event: Event, outcome: Retry, destination: Destination | None
    ) -> float | None:
        """When the next probe of something else is due that kept this one from going out."""
        if outcome.counted:
            return None
        found = waits_for(event, outcome, destination)
        if found == block or not self.dispatcher.is_open(found):
            return None
        closed = self.dispatcher.breaker(found) or destination
        return closed.next_probe() if closed is not None else None

    def _widened(self) -> int:
        """All of a claim may die of a missing topic where the contract wants it so: that is one batch, not more."""
        return 1 if self.source.statements.marks_unroutable else min(self._width * 2, WIDEST)

    def _claim(self, token: str) -> Batch:
        keys, limit = self.source.keys, min(self.source.settings.batch_size * self._width, self._fitting)
        topics = keys.blocked_topics()
        batch = self.source.claim(
            self.source.statements.claim,
            token,
            {
                "slots": self.ownership.active if self.ownership is not None else [],
                "blocked": Texts(keys.blocked()),
                "types": keys.blocked_types(),
                "topics": [topic for topic, _ in topics],
                "topic_types": [type for _, type in topics],
                "low": self.low.begin(),
                "limit": limit,
            },
        )
        self._found = batch
        size = len(batch.events)
        self.low.looked(batch.events, full=batch.cut or size == limit)
        self._fitting = 2 * size if batch.cut else min(2 * self._fitting, ANY_NUMBER)
        if size:
            self.source.tally.observe(metrics.BATCH_SIZE, size, source=self.source.name)
        return batch

    def _claim_ids(self, ids: list[str], token: str) -> Batch:
        return self.source.claim(self.source.statements.claim_ids, token, {"ids": ids})

    def _claim_due(self, token: str) -> Batch:
        """Heads whose wait is over. One that is not there any more was settled or discarded by somebody else."""
        due = self.source.keys.due(time.monotonic())
        if not due:
            return NOTHING
        asked = dict(islice(due.items(), min(MOST_DUE, self.source.settings.batch_size)))
        batch = self._claim_ids(list(asked), token)
        if not batch.events and len(asked) > 1:
            # An answer without a row does not tell whether there was no room, so only the first one is asked for.
            asked = dict(islice(asked.items(), 1))
            batch = self._claim_ids(list(asked), token)
        missing = asked.keys() - {event.id for event in batch.events}
        # Those for which there was no room are still due.
        for head in missing if not batch.cut else ():
            self.source.keys.free(asked[head], head)
        return batch

    def _chores(self) -> None:
        self._keep_slots()
        for destination in self.dispatcher.destinations.values():
            destination.probe()
        self._free_awaited()
        self._drop_idle()

    def _keep_slots(self) -> None:
        now = time.monotonic()
        grace_ends = self.ownership.grace_ends() if self.ownership is not None else None
        if now < self._next_chores and (grace_ends is None or now < grace_ends):
            return
        self._next_chores = now + CHORES_INTERVAL
        if not self._may_work():
            return
        if self.ownership is not None and self.ownership.take():
            self._inherit(self.ownership)
        if now >= self._next_reap:
            self._next_reap = now + min(
                self.source.settings.lease_timeout.total_seconds() / 4, LONGEST_REAP_INTERVAL
            )
            self._reap()
        if self.ownership is not None:
            # After all that can make an event dead.
            self.ownership.look_for_parked()

    def _free_awaited(self) -> None:
        """Set free what waited for a destination that is back; its probe may have been another source's."""
        for block in self.source.keys.awaited():
            if not self.dispatcher.is_open(block):
                self.source.keys.lift(block)

    def _drop_idle(self) -> None:
        """Forget what is closed and awaited by nobody. Probes may be put off for long, and then nobody is forgotten."""
        now = time.monotonic()
        for block in self.source.keys.awaited():
            if (breaker := self.dispatcher.breaker(block)) is not None:
                breaker.wanted_at = now
        for destination in self.dispatcher.destinations.values():
            destination.drop_idle()
        if self.guard is not None:
            self.guard.drop_idle()

    def _handover_note(self, ownership: SlotOwnership) -> HandoverNote | None:
        """What the next shift would have to find out again."""
        self._free_awaited()
        keys = self.source.keys
        waiting = [self._waiting(block) for block in keys.awaited() | self.dispatcher.closed()]
        # That something is closed is always told: the next shift must not find it out by sending a batch there.
        many = sum(len(one.keys) for one in waiting) > MOST_KEYS
        if many:
            waiting = [one.model_copy(update={"keys": [], "types": []}) for one in waiting]
        # A key may become free between two shifts, and what stands behind its head lies below the mark.
        mark = None if many or keys.heads or keys.parked or ownership.suspects else self.low.note()
        if not waiting and mark is None:
            return None
        instance = ownership.slots.owner.instance
        return HandoverNote(instance=instance, slots=ownership.active, waiting=waiting, mark=mark)

    def _waiting(self, block: Block) -> DestinationBacklog:
        keys, breaker = self.source.keys, self.dispatcher.breaker(block)
        closed = breaker or self.dispatcher.destinations[block.destination]
        return DestinationBacklog(
            **block._asdict(),
            fault=breaker.fault if breaker is not None else None,
            probes=list(keys.probes.get(block, ())),
            since=closed.since,
            reason=closed.reason,
            probe_in=(closed.next_probe() or 0.0) - time.monotonic(),
            pause=closed.pause,
            keys=list(keys.down.get(block, ())),
            types=list(keys.down_types.get(block, ())),
        )

    def _inherit(self, ownership: SlotOwnership) -> None:
        if ownership.inherited is None:
            return
        (note, age), ownership.inherited = ownership.inherited, None
        destinations = self.dispatcher.destinations
        if any(one.destination and one.destination not in destinations for one in note.waiting):
            return
        for waiting in note.waiting:
            block = Block(waiting.destination, waiting.topic, waiting.type)
            self._presume(block, waiting, age)
            self.source.keys.wait_for_note(block, waiting.keys, waiting.types, waiting.probes)
        if note.mark is not None and not self.source.keys.heads:
            self.low.resume(note.mark, age)

    def _presume(self, block: Block, waiting: DestinationBacklog, age: float) -> None:
        """What the shift before us found closed is closed for us, too, and its probes go on in their rhythm."""
        probe_at = time.monotonic() + waiting.probe_in - age
        breaker = Breaker(waiting.reason, waiting.since, waiting.pause, waiting.fault, probe_at=probe_at)
        if block.type is not None:
            if self.guard is not None:
                breaker.longest = LONGEST_PAUSE
                self.guard.presume(block.type, breaker)
            return
        destination = self.dispatcher.destinations[block.destination]
        if block.topic is not None:
            destination.topics.setdefault(block.topic, breaker)
        else:
            destination.presume_down(waiting.reason, waiting.probe_in - age, waiting.pause)

    def _reap(self) -> None:
        """Give back leases that ran out; where slots are owned, the owner of the first does it for all."""
        if self.ownership is not None and 0 not in self.ownership.active:
            return
        source, settings = self.source, self.source.settings
        while True:
            reaped = source.maintenance.reap(
                source.conn, settings.lease_timeout, settings.retry.max_attempts, settings.reap_batch_size
            )
            count = len(reaped.returned) + len(reaped.dead)
            if count:
                log.warning("leases ran out", extra={"source": source.name, "events": count})
                source.tally.add(metrics.REAPED_TOTAL, count, source=source.name)
                source.count("dead", len(reaped.dead))
            if count < settings.reap_batch_size:
                return

    def _wake_in_time(self) -> None:
        """Retries, probes and graces end at known times: look then, not at the next poll."""
        times = [self.ownership.grace_ends() if self.ownership is not None else None]
        if not self.dispatcher.all_down():
            times.append(self.source.keys.next_due())
            times.extend(self.dispatcher.next_probe(block) for block in self.source.keys.awaited())
        times.extend(destination.next_probe() for destination in self.dispatcher.destinations.values())
        self.waker.next_poll = min([self.waker.next_poll, *(t for t in times if t is not None)])


def _waits(outcomes: Sequence[Outcome]) -> bool:
    """Does all of it wait for a breaker, or behind what does?"""
    return all(
        isinstance(outcome, Held) or (isinstance(outcome, Retry) and not outcome.counted)
        for outcome in outcomes
    )
