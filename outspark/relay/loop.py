"""One source on one lane: look, claim, publish, settle, and look again."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from outspark import metrics
from outspark.contracts.arrays import Texts
from outspark.errors import OwnershipLost
from outspark.outcome import DELIVERED
from outspark.relay.deliveries import Deliveries
from outspark.relay.dispatch import NOWHERE, Dispatcher
from outspark.relay.doorbell import Doorbell, Polling
from outspark.relay.lowwater import BEGINNING, LowWater
from outspark.relay.note import MOST_KEYS, Note, Waiting
from outspark.relay.settling import Settler
from outspark.relay.shedlock import ShedLock
from outspark.relay.source import NOTHING, Batch, Source
from outspark.relay.tenure import Tenure

log = logging.getLogger(__name__)

UPKEEP_INTERVAL = 1.0
LOCK_MARGIN = 1.0
LONGEST_REAP_INTERVAL = 30.0


@dataclass(slots=True)
class SourceLoop:
    """With a tenure it works on the slots it owns; without one it competes for single events."""

    source: Source
    tenure: Tenure | None
    dispatcher: Dispatcher
    settler: Settler
    waking: Polling | Doorbell
    low: LowWater
    token_prefix: str
    deliveries: Deliveries | None = None
    """Where events go to several destinations."""
    lock: ShedLock | None = None
    """Where relays of other makes take turns with ours."""
    _claims: int = 0
    _found: Batch = NOTHING
    """What the last look in order brought."""
    _next_upkeep: float = 0.0
    _next_reap: float = 0.0

    def step(self) -> int:
        """Look once and work on what is there; how many events were settled."""
        self.waking.about_to_look()
        self._upkeep()
        self._claims += 1
        batch = self._next(f"{self.token_prefix}/{self._claims}")
        if not batch.events:
            self.waking.found_nothing()
            self._wake_in_time()
            return 0
        freed = self.source.keys.freed
        self._work(batch)
        saw_the_end = batch is self._found and self.low.saw_the_end
        self.waking.worked(more=not saw_the_end or self.source.keys.freed != freed)
        self._wake_in_time()
        return len(batch.events)

    def warm(self) -> None:
        """Plan and run the statements of a normal batch once, on nothing."""
        statements = self.source.statements
        nothing = {"slots": [], "blocked": [], "types": [], "low": BEGINNING, "limit": 0, "token": ""}
        self.source.conn.execute(statements.claim, nothing, binary=True)
        fence = {"token": "", "source": "", "slots": [], "epochs": []}
        self.source.conn.execute(statements.deliver_all, {"ids": [], "leased_at": None, **fence})
        self.low.prepare()

    def release(self) -> None:
        """Give the slots back in good order. The caller unlocks the session."""
        self.waking.release()
        if self.tenure is not None:
            self.tenure.leave(self._note(self.tenure))

    def _work(self, batch: Batch) -> None:
        # The leases must outlive the publishing by far.
        budget = self.source.settings.lease_timeout.total_seconds() / 2
        been = self.deliveries.look_up([event.id for event in batch.events]) if self.deliveries else NOWHERE
        started = time.monotonic()
        dispatched = self.dispatcher.dispatch(batch.events, budget, self._prove, been)
        if (timer := self.source.statements.publish_timer) is not None:
            took = [time.monotonic() - started] * dispatched.outcomes.count(DELIVERED)
            self.source.tally.observe_many(timer.name, took, source=self.source.name, **timer.labels)
        through = self.settler.settle(batch, dispatched, been)
        if through and batch is self._found:
            self.low.passed(batch.events[-1].created_at)
        if self.tenure is not None and self.tenure.suspects:
            self.tenure.clear_blocked()

    def _prove(self) -> None:
        if self.lock is not None and not self.lock.hold(self._longest_publish()):
            raise self._lost_lock()
        if self.tenure is not None:
            self.tenure.prove()

    def _longest_publish(self) -> float:
        destinations = self.dispatcher.destinations.values()
        return max((destination.timeout for destination in destinations), default=0.0) + LOCK_MARGIN

    def _may_work(self) -> bool:
        """Whoever does not hold the lock takes no slots either, so that its holder can have them all."""
        if self.lock is None or self.lock.hold(self._longest_publish()):
            return True
        if self.tenure is not None and self.tenure.slots.epochs:
            raise self._lost_lock()
        return False

    def _lost_lock(self) -> OwnershipLost:
        assert self.lock is not None
        return OwnershipLost(f"the lock {self.lock.name} of {self.source.name} is another relay's now")

    def _next(self, token: str) -> Batch:
        if self.dispatcher.all_down():
            return NOTHING
        if self.tenure is not None:
            if not self.tenure.active:
                return NOTHING
            suspect = self.tenure.next_suspect()
            if suspect is not None:
                return self._claim_ids([suspect], token)
        due = self.source.keys.due(time.monotonic())
        if due:
            return self._claim_due(due, token)
        return self._claim(token)

    def _claim(self, token: str) -> Batch:
        keys, settings = self.source.keys, self.source.settings
        batch = self.source.claim(
            self.source.statements.claim,
            token,
            {
                "slots": self.tenure.active if self.tenure is not None else [],
                "blocked": Texts(keys.blocked()),
                "types": keys.blocked_types(),
                "low": self.low.begin(),
                "limit": settings.batch_size,
            },
        )
        self._found = batch
        size = len(batch.events)
        self.low.looked(batch.events, settings.batch_size)
        if size:
            self.source.tally.observe(metrics.BATCH_SIZE, size, source=self.source.name)
        return batch

    def _claim_ids(self, ids: list[str], token: str) -> Batch:
        return self.source.claim(self.source.statements.claim_ids, token, {"ids": ids})

    def _claim_due(self, due: dict[str, str], token: str) -> Batch:
        """Heads whose wait is over. One that is not there any more was settled or discarded by somebody else."""
        batch = self._claim_ids(list(due), token)
        for head in due.keys() - {event.id for event in batch.events}:
            self.source.keys.free(due[head], head)
        return batch

    def _upkeep(self) -> None:
        self._keep_slots()
        for destination in self.dispatcher.destinations.values():
            destination.probe()
        self._free_awaited()

    def _keep_slots(self) -> None:
        now = time.monotonic()
        grace_ends = self.tenure.grace_ends() if self.tenure is not None else None
        if now < self._next_upkeep and (grace_ends is None or now < grace_ends):
            return
        self._next_upkeep = now + UPKEEP_INTERVAL
        if not self._may_work():
            return
        if self.tenure is not None and self.tenure.take():
            self._inherit(self.tenure)
        if now >= self._next_reap:
            self._next_reap = now + min(
                self.source.settings.lease_timeout.total_seconds() / 4, LONGEST_REAP_INTERVAL
            )
            self._reap()
        if self.tenure is not None:
            # After all that can make an event dead.
            self.tenure.look_for_parked()

    def _free_awaited(self) -> None:
        """Set free what waited for a destination that is back; its probe may have been another source's."""
        for name in self.source.keys.awaited():
            if not self.dispatcher.destinations[name].open:
                self.source.keys.destination_is_back(name)

    def _note(self, tenure: Tenure) -> Note | None:
        """What the next shift would have to find out again."""
        self._free_awaited()
        keys = self.source.keys
        waiting = {name: self._waiting(name) for name in keys.awaited()}
        if sum(len(one.keys) for one in waiting.values()) > MOST_KEYS:
            return None
        # A key may become free between two shifts, and what stands behind its head lies below the mark.
        mark = None if keys.heads or keys.parked or tenure.suspects else self.low.note()
        if not waiting and mark is None:
            return None
        instance = tenure.slots.owner.instance
        return Note(instance=instance, slots=tenure.active, waiting=waiting, mark=mark)

    def _waiting(self, name: str) -> Waiting:
        destination, keys = self.dispatcher.destinations[name], self.source.keys
        return Waiting(
            reason=destination.reason,
            probe_in=(destination.next_probe() or 0.0) - time.monotonic(),
            pause=destination.pause,
            keys=list(keys.down.get(name, ())),
            types=list(keys.down_types.get(name, ())),
        )

    def _inherit(self, tenure: Tenure) -> None:
        if tenure.inherited is None:
            return
        (note, age), tenure.inherited = tenure.inherited, None
        if not note.waiting.keys() <= self.dispatcher.destinations.keys():
            return
        for name, waiting in note.waiting.items():
            destination = self.dispatcher.destinations[name]
            destination.presume_down(waiting.reason, waiting.probe_in - age, waiting.pause)
            self.source.keys.wait_for_note(name, waiting.keys, waiting.types)
        if note.mark is not None and not self.source.keys.heads:
            self.low.resume(note.mark, age)

    def _reap(self) -> None:
        """Give back leases that ran out; where slots are owned, the owner of the first does it for all."""
        if self.tenure is not None and 0 not in self.tenure.active:
            return
        source, settings = self.source, self.source.settings
        while True:
            reaped = source.upkeep.reap(
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
        times = [self.tenure.grace_ends() if self.tenure is not None else None]
        if not self.dispatcher.all_down():
            times.append(self.source.keys.next_due())
        times.extend(destination.next_probe() for destination in self.dispatcher.destinations.values())
        self.waking.next_look = min([self.waking.next_look, *(t for t in times if t is not None)])
