"""One source on one lane: claim, publish, settle, and claim again."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from outspark.contracts.relay_statements import ClaimIdsParams, ClaimParams
from outspark.database.arrays import Texts
from outspark.database.side_tables import Deliveries
from outspark.delivery.dead_guard import DeadGuard
from outspark.delivery.dispatcher import NOWHERE, Dispatcher
from outspark.observability import metrics
from outspark.outcome import DELIVERED, Held, Outcome, Retry
from outspark.relay.handover import MOST_KEYS, HandoverNote
from outspark.relay.low_water import BEGINNING, LowWater
from outspark.relay.ownership import SlotOwnership
from outspark.relay.permit import LanePermit
from outspark.relay.probing import Probing
from outspark.relay.settle import Settler
from outspark.relay.source import NOTHING, Batch, Source
from outspark.relay.waking import Doorbell, Polling

log = logging.getLogger(__name__)

CHORES_INTERVAL = 1.0
LONGEST_REAP_INTERVAL = 30.0
MOST_DUE = 20
"""Heads that are tried again together: one that hangs costs the lane as long as its publisher waits for it."""
WIDEST = 8
"""Where a claim finds only events that wait, claims grow up to this many batches: events that go on are behind them."""
ANY_NUMBER = 1 << 20
"""More than any claim asks for."""
RETRY_REST = 3.0
"""After heads were tried again, other events have the lane for this many times as long as that took."""


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
    permit: LanePermit
    deliveries: Deliveries | None = None
    """Where events go to several destinations."""
    guard: DeadGuard | None = None
    probing: Probing = field(init=False)
    _token: str = ""
    _claims: int = 0
    _found: Batch = NOTHING
    """What the last claim in order brought."""
    _next_chores: float = 0.0
    _next_reap: float = 0.0
    _width: int = 1
    """How many times as many events as a batch a claim in order asks for."""
    _fitting: int = ANY_NUMBER
    """A claim asks for at most twice as many events as the last one had room for: the others are only measured."""
    _again_after: float = 0.0
    """Until this time events that failed wait while there is other work: an event that hung once may hang again."""
    _trying_again: bool = False
    """Is the batch one of events that failed before?"""
    _heads_next: bool = False
    """Probes and heads that are due take turns."""

    def __post_init__(self) -> None:
        self.probing = Probing(self.source.keys, self.dispatcher, self.guard, self._claim_one)

    def step(self) -> int:
        """Claim once and work on the batch; how many events were settled."""
        self.permit.beat()
        self.waker.before_poll()
        self._chores()
        self._claims += 1
        self._token = f"{self.token_prefix}/{self._claims}"
        batch = self._next()
        if not batch.events:
            self.waker.after_empty_poll()
            self._wake_in_time()
            return 0
        claimed = self.source.keys.now()
        self._work(batch)
        saw_the_end = batch is self._found and self.low.saw_the_end
        self.waker.after_batch(more=not saw_the_end or self.source.keys.freed_since(claimed))
        self._wake_in_time()
        # Free the memory of this batch before the next claim.
        self._found = NOTHING
        return len(batch.events)

    def warm(self) -> None:
        """Plan and run the statements of a normal batch once, on nothing."""
        statements = self.source.statements
        empty = ("slots", "blocked", "types", "topics", "topic_types")
        nothing = {**{name: [] for name in empty}, "low": BEGINNING, "limit": 0, "token": ""}
        self.source.conn.execute(statements.claim.text, nothing, binary=True)
        fence = {"token": "", "source": "", "slots": [], "epochs": []}
        self.source.conn.execute(statements.deliver_all.text, {"ids": [], "leased_at": None, **fence})
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
        dispatched = self.dispatcher.dispatch(batch.events, budget, self.permit, been)
        if self._trying_again:
            self._again_after = time.monotonic() + RETRY_REST * (time.monotonic() - started)
        self.probing.excuse(batch.events[0], dispatched)
        if (timer := self.source.statements.publish_timer) is not None:
            took = [time.monotonic() - started] * dispatched.outcomes.count(DELIVERED)
            self.source.tally.observe_many(timer.name, took, source=self.source.name, **timer.labels)
        all_done = self.settler.settle(batch, dispatched, been)
        if batch is self._found:
            self._width = self._widened() if _waits(dispatched.outcomes) else 1
        if all_done and batch is self._found:
            self.low.settled_up_to(batch.events[-1].created_at)
        if self.ownership is not None and self.ownership.suspects:
            self.ownership.clear_blocked()

    def _next(self) -> Batch:
        self._trying_again, self.probing.probed = False, None
        if self.dispatcher.all_down():
            return NOTHING
        if self.ownership is not None:
            if not self.ownership.active:
                return NOTHING
            suspect = self.ownership.next_suspect()
            if suspect is not None:
                return self._claim_one(suspect)
        rested = time.monotonic() >= self._again_after
        batch = self._claim_again() if rested else NOTHING
        if not batch.events:
            batch = self._claim()
        if not batch.events and not rested:
            batch = self._claim_again()
        return batch

    def _claim_again(self) -> Batch:
        """A few events that failed before: a probe or heads that are due, in turn."""
        for heads in (self._heads_next, not self._heads_next):
            batch = self._claim_due() if heads else self.probing.next()
            if batch.events:
                self._trying_again, self._heads_next = True, not heads
                return batch
        return NOTHING

    def _widened(self) -> int:
        """Where the contract lets events die of a missing topic, all of a claim may: so one batch at most."""
        return 1 if self.source.statements.marks_unroutable else min(self._width * 2, WIDEST)

    def _claim(self) -> Batch:
        limit = min(self.source.settings.batch_size * self._width, self._fitting)
        batch = self.source.claim(self.source.statements.claim, self._claim_params(limit), self._token)
        self._found = batch
        size = len(batch.events)
        self.low.claimed(batch.events, full=batch.cut or size == limit)
        self._fitting = 2 * size if batch.cut else min(2 * self._fitting, ANY_NUMBER)
        if size:
            self.source.tally.observe(metrics.BATCH_SIZE, size, source=self.source.name)
        return batch

    def _claim_params(self, limit: int) -> ClaimParams:
        keys = self.source.keys
        topics = keys.blocked_topics()
        return {
            "slots": self.ownership.active if self.ownership is not None else [],
            "blocked": Texts(keys.blocked()),
            "types": keys.blocked_types(),
            "topics": [topic for topic, _ in topics],
            "topic_types": [type for _, type in topics],
            "low": self.low.begin(),
            "limit": limit,
            "token": self._token,
        }

    def _claim_one(self, id: str) -> Batch:
        return self._claim_ids([id])

    def _claim_ids(self, ids: list[str]) -> Batch:
        return self.source.claim(
            self.source.statements.claim_ids, ClaimIdsParams(ids=ids, token=self._token), self._token
        )

    def _claim_due(self) -> Batch:
        """Heads whose wait is over. A head that is missing was settled or discarded by another session."""
        due = self.source.keys.due(time.monotonic())
        if not due:
            return NOTHING
        asked = dict(islice(due.items(), min(MOST_DUE, self.source.settings.batch_size)))
        batch = self._claim_ids(list(asked))
        if not batch.events and len(asked) > 1:
            # An answer without a row does not tell whether there was no room, so the lane asks for the first one only.
            asked = dict(islice(asked.items(), 1))
            batch = self._claim_ids(list(asked))
        missing = asked.keys() - {event.id for event in batch.events}
        # Heads for which there was no room are still due.
        for head in missing if not batch.cut else ():
            self.source.keys.head_gone(asked[head], head)
        return batch

    def _chores(self) -> None:
        self._keep_slots()
        for destination in self.dispatcher.destinations.values():
            destination.probe()
        self.probing.free_awaited()
        self.probing.drop_idle()

    def _keep_slots(self) -> None:
        now = time.monotonic()
        grace_ends = self.ownership.grace_ends() if self.ownership is not None else None
        if now < self._next_chores and (grace_ends is None or now < grace_ends):
            return
        self._next_chores = now + CHORES_INTERVAL
        if not self.permit.may_work():
            return
        if self.ownership is not None and self.ownership.take():
            self._inherit(self.ownership)
        if now >= self._next_reap:
            self._next_reap = now + min(
                self.source.settings.lease_timeout.total_seconds() / 4, LONGEST_REAP_INTERVAL
            )
            self._reap()
        if self.ownership is not None:
            # After everything that can make an event dead.
            self.ownership.find_dead()

    def _handover_note(self, ownership: SlotOwnership) -> HandoverNote | None:
        """What the next shift would have to find out again."""
        self.probing.free_awaited()
        waiting = self.probing.backlogs()
        # The note always tells what is closed: the next shift must not find it out by sending a batch there.
        many = sum(len(one.keys) for one in waiting) > MOST_KEYS
        if many:
            waiting = [one.model_copy(update={"keys": [], "types": []}) for one in waiting]
        # A key may become free between two shifts, and the events behind its head lie below the mark.
        unsafe = many or self.source.keys.blocks_single_keys() or ownership.suspects
        mark = None if unsafe else self.low.note()
        if not waiting and mark is None:
            return None
        instance = ownership.slots.owner.instance
        return HandoverNote(instance=instance, slots=ownership.active, waiting=waiting, mark=mark)

    def _inherit(self, ownership: SlotOwnership) -> None:
        if ownership.inherited is None:
            return
        (note, age), ownership.inherited = ownership.inherited, None
        destinations = self.dispatcher.destinations
        if any(one.destination and one.destination not in destinations for one in note.waiting):
            return
        for waiting in note.waiting:
            self.probing.inherit(waiting, age)
        if note.mark is not None and self.source.keys.next_due() is None:
            self.low.resume(note.mark, age)

    def _reap(self) -> None:
        """Give back leases that ran out; where slots are owned, the owner of the first slot does it for all."""
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
        """Retries, probes and graces end at known times: claim then, not at the next poll."""
        times = [self.ownership.grace_ends() if self.ownership is not None else None]
        if not self.dispatcher.all_down():
            times.append(self.source.keys.next_due())
            times.extend(self.probing.times())
        times.extend(destination.next_probe() for destination in self.dispatcher.destinations.values())
        self.waker.next_poll = min([self.waker.next_poll, *(t for t in times if t is not None)])


def _waits(outcomes: Sequence[Outcome]) -> bool:
    """Do all of the events wait for a breaker, or behind an event that does?"""
    return all(
        isinstance(outcome, Held) or (isinstance(outcome, Retry) and not outcome.counted)
        for outcome in outcomes
    )
