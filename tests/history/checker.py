"""Decides whether a history kept what Outspark promises. Pure: it looks at nothing but the history.

The promises, each a function below:

- No loss: what was committed is delivered, or dead for a reason; what was rolled back is never seen.
- Order: when an event of a key is published, every earlier event of the key has been delivered, or is dead and
  never published again. A scheduled event joins the order when it is due. Under `park` nothing is published
  behind a dead event.
- Bounded duplicates: an event is published again after its delivery only when the process that delivered it was
  killed and had not claimed again since, so that the settle may be missing; or when a real broker took it and never
  said so, because it was stopped. Hence at most one batch a kill, and one batch of each process a stop of the
  broker, is repeated, and nothing that was settled.
- Attempts: each counted failure is one, where failures count at all; each death of a lane while the event was in
  flight is at most one more.
- Blame: a real broker that is stopped costs no event an attempt, and none its life.
- Leases: under `ordering = "none"`, what one process claimed no other claims before it was published or its
  holder was killed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from uuid import UUID

from tests.history.history import History, Written
from tests.history.journal import Entry
from tests.history.publisher import Behaviour

CLAIM_SLACK = 2.0
"""Seconds that may pass from the claim of a batch, or the naming of suspects, to the publishing of its last event."""

MUST_DIE = (Behaviour.DIE, Behaviour.POISON)


def check(history: History) -> list[str]:
    """Every broken promise in words; an empty list is a pass."""
    evidence = Evidence(history)
    rules: list[Callable[[Evidence], Iterator[str]]] = [loss, order, duplicates, attempts, blame, leases]
    return [breach for rule in rules for breach in rule(evidence)]


@dataclass(slots=True)
class Evidence:
    """The journal of a history, sorted by event, key and process."""

    history: History
    published: dict[UUID, list[tuple[int, Entry]]] = field(default_factory=lambda: defaultdict(list))
    claimed: dict[UUID, list[tuple[int, Entry]]] = field(default_factory=lambda: defaultdict(list))
    keys: dict[str, list[Written]] = field(default_factory=lambda: defaultdict(list))
    last_batch: Counter[str] = field(default_factory=Counter)
    sent: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for number, entry in enumerate(self.history.entries):
            match entry.deed:
                case "claimed":
                    self.claimed[entry.event].append((number, entry))
                case "sent":
                    self.sent.add(entry.send)
                case "acked":
                    self.acked.add(entry.send)
                case _:
                    self.published[entry.event].append((number, entry))
            self.last_batch[entry.process] = max(self.last_batch[entry.process], entry.batch)
        for event in sorted(self.history.written.values(), key=lambda event: event.harness):
            if event.key is not None:
                self.keys[event.key].append(event)

    def count(self, event: UUID, *deeds: str) -> int:
        return sum(entry.deed in deeds for _, entry in self.published[event])

    def unsettled(self, entry: Entry) -> bool:
        """May this have been forgotten because its process was killed before the settle?"""
        killed = entry.process in self.history.killed
        return killed and entry.batch == self.last_batch[entry.process]

    def may_repeat(self, delivery: Entry, entry: Entry) -> bool:
        """Is there a reason why the lane, or a real broker's client, did not know of the delivery?"""
        if delivery.send in self.sent:
            # A client may send again by itself what a lost connection left open.
            unknown = delivery.send not in self.acked or entry.send == delivery.send
            return unknown or self.unsettled(delivery)
        return self.unsettled(delivery)


def loss(evidence: Evidence) -> Iterator[str]:
    history = evidence.history
    for stranger in (evidence.published.keys() | evidence.claimed.keys()) - history.written.keys():
        yield f"{stranger} was never committed, but seen"
    for id, event in history.written.items():
        row = history.rows.get(id)
        if row is None:
            yield f"{id} is not in the table any more"
        elif row.status == "DELIVERED":
            if event.behaviour is not Behaviour.SKIP and not evidence.count(id, "delivered"):
                yield f"{id} is settled as delivered, but was not"
            if event.behaviour in MUST_DIE:
                yield f"{id} should have died"
        elif row.status == "DEAD":
            if event.behaviour not in MUST_DIE and row.attempts < history.rules.max_attempts:
                yield f"{id} is dead after {row.attempts} attempts"
        elif not _parked(evidence, event):
            yield f"{id} is still {row.status}"
        if row is not None and row.status != "DELIVERING" and row.locked_by is not None:
            yield f"{id} is {row.status}, but leased to {row.locked_by}"


def order(evidence: Evidence) -> Iterator[str]:
    if evidence.history.rules.ordering == "none":
        return
    for key, events in evidence.keys.items():
        for position, event in enumerate(events):
            for number, entry in evidence.published[event.id]:
                for earlier in events[:position]:
                    if not _passed(evidence, earlier, number, _first_seen(evidence, event.id)):
                        yield f"{event.id} of key {key} overtook {earlier.id} ({entry.deed} by {entry.process})"


def duplicates(evidence: Evidence) -> Iterator[str]:
    repeated: Counter[str] = Counter()
    for id, records in evidence.published.items():
        delivery: Entry | None = None
        for _, entry in records:
            if delivery is not None and not evidence.may_repeat(delivery, entry):
                yield f"{id} was {entry.deed} by {entry.process} after its delivery by {delivery.process}"
            elif delivery is not None:
                repeated[delivery.process] += entry.deed == "delivered"
            delivery = entry if entry.deed == "delivered" else delivery
    for process, count in repeated.items():
        batches = (process in evidence.history.killed) + evidence.history.broker_stops
        if count > batches * evidence.history.rules.batch_size:
            yield f"{count} events of {process} came twice, more than {batches} batches"


def attempts(evidence: Evidence) -> Iterator[str]:
    history = evidence.history
    poisoned = {entry.process for entry in history.entries if entry.deed == "died"}
    from_outside = len(history.killed - poisoned)
    for id, event in history.written.items():
        row = history.rows.get(id)
        if row is None:
            continue
        counted = ("failed", "dead") if history.rules.counts_failures else ()
        failures = [entry for _, entry in evidence.published[id] if entry.deed in counted]
        forgotten = sum(evidence.unsettled(entry) for entry in failures)
        if history.rules.lease == "slot":
            in_flight = len(history.killed)
        else:
            # A kill from outside can fall between a claim and its line in the journal.
            in_flight = from_outside + sum(
                evidence.unsettled(entry) and entry.process in poisoned for _, entry in evidence.claimed[id]
            )
        fewest, most = len(failures) - forgotten, len(failures) + in_flight
        if not fewest <= row.attempts <= most:
            yield f"{id} has {row.attempts} attempts, not {fewest} to {most}"
        if event.behaviour is Behaviour.POISON and evidence.count(id, "died") > _deadly_attempts(history):
            yield f"{id} killed {evidence.count(id, 'died')} lanes, more than its attempts"


def blame(evidence: Evidence) -> Iterator[str]:
    """What is meant to fail is never sent, so whatever was sent did nothing wrong."""
    for id, records in evidence.published.items():
        for _, entry in records:
            if entry.send in evidence.sent and entry.deed in ("failed", "dead"):
                yield f"{id} was blamed for what the broker did ({entry.deed}): {entry.why}"


def leases(evidence: Evidence) -> Iterator[str]:
    if evidence.history.rules.ordering == "key":
        return
    for id, claims in evidence.claimed.items():
        for (start, holder), (end, other) in pairwise(claims):
            done = any(
                start < number < end for number, e in evidence.published[id] if e.process == holder.process
            )
            if not done and holder.process not in evidence.history.killed:
                yield f"{id} was claimed by {other.process} while {holder.process} held it"


def _deadly_attempts(history: History) -> int:
    """How many lanes a poison event may kill. Where a claim leaves no mark, a death in company is not counted; it
    only makes suspects of those who were there. That happens once, and again when a suspect fell back among others:
    the key was blocked before its turn came, or the relay was stopped."""
    return history.rules.max_attempts * (1 if history.rules.lease == "row" else 2)


def _parked(evidence: Evidence, event: Written) -> bool:
    """A parked key keeps what comes after its dead event, and what was scheduled and fell due too late."""
    if evidence.history.rules.on_dead == "continue" or event.key is None:
        return False
    dead = [other for other in evidence.keys[event.key] if evidence.history.rows[other.id].status == "DEAD"]
    return any(other.harness < event.harness or event.due is not None for other in dead)


def _passed(evidence: Evidence, earlier: Written, number: int, first_seen: float) -> bool:
    """Was `earlier` out of the way when the line `number` was written?"""
    if earlier.behaviour is Behaviour.SKIP:
        return True
    if earlier.due is not None and first_seen < earlier.due.timestamp() + CLAIM_SLACK:
        return True
    records = evidence.published[earlier.id]
    if any(entry.deed == "delivered" and when < number for when, entry in records):
        return True
    row = evidence.history.rows.get(earlier.id)
    is_dead = row is not None and row.status == "DEAD" and all(when < number for when, _ in records)
    return is_dead and evidence.history.rules.on_dead == "continue"


def _first_seen(evidence: Evidence, event: UUID) -> float:
    return min((entry.at for _, entry in evidence.claimed[event]), default=0.0)
