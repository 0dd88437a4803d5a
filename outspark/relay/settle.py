"""From outcomes to what the table says: one fenced transaction per batch, and the keys that a failure blocks."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, assert_never

from outspark import backoff
from outspark.contracts.contract import Settlement
from outspark.database.side_tables import Deliveries
from outspark.delivery.dead_guard import DeadGuard
from outspark.delivery.destination import Block, Destination
from outspark.delivery.dispatcher import NOWHERE, Dispatched
from outspark.event import Event
from outspark.observability import metrics
from outspark.observability.causes import Trouble
from outspark.outcome import (
    KIND_OF_FAULT,
    Dead,
    DeadKind,
    Delivered,
    Held,
    Outcome,
    Retry,
    Skipped,
    all_delivered,
)
from outspark.redaction import storable
from outspark.relay.ownership import SlotOwnership
from outspark.relay.source import Batch, Source

log = logging.getLogger(__name__)

TOLD = 5
"""Ids in a line about dead events."""
NO_FENCE: dict[str, Any] = {"source": "", "slots": [], "epochs": []}

_seconds = timedelta.total_seconds


def waits_for(event: Event, outcome: Retry, destination: Destination | None) -> Block:
    """What an event waits for that is not at fault itself: its destination, a topic of it, or its type."""
    return Block("", type=event.type) if destination is None else Block(destination.name, outcome.topic)


@dataclass(slots=True)
class Settler:
    """Settles the batches of one source. Without an ownership keys mean nothing, and only tokens fence."""

    source: Source
    ownership: SlotOwnership | None
    deliveries: Deliveries | None = None
    guard: DeadGuard | None = None
    trouble: Trouble = field(default_factory=Trouble)

    def settle(
        self, batch: Batch, dispatched: Dispatched, been: Mapping[str, Collection[str]] = NOWHERE
    ) -> bool:
        """Answers whether all of it is through.

        OwnershipLost when the slots belong to somebody else; single leases that were lost are only counted.
        `been` says which events had reached some of their destinations before.
        """
        outcomes = dispatched.outcomes
        delivered, rest = self._sort(batch.events, dispatched)
        ids = [event.id for event in delivered]
        if self.deliveries is not None and (dispatched.partial or been):
            with self.source.conn.transaction():
                changed = self._write(batch, ids, rest)
                self.deliveries.record(dispatched.partial)
                self.deliveries.forget(been.keys() & ids)
        else:
            changed = self._write(batch, ids, rest)
        self._count(delivered, outcomes, lost=len(batch.events) - changed)
        if self.guard is not None:
            self._watch_deaths(self.guard, batch, outcomes, ids, rest)
        for event in delivered if self.source.keys.heads else ():
            self.source.keys.free(event.order_key, event.id)
        if rest:
            self._tell_dead(rest)
        return not rest and changed == len(batch.events)

    def _sort(
        self, events: Sequence[Event], dispatched: Dispatched
    ) -> tuple[Sequence[Event], list[Settlement]]:
        """What was delivered, and what is to be written of the others."""
        outcomes = dispatched.outcomes
        if len(outcomes) == len(events) and all_delivered(outcomes):
            return events, []
        delivered: list[Event] = []
        rest: list[Settlement] = []
        for event, outcome, destination in zip(events, outcomes, dispatched.destinations, strict=True):
            if isinstance(outcome, Delivered):
                delivered.append(event)
            else:
                rest.append(self._settlement(event, outcome, destination))
        return delivered, rest

    def _watch_deaths(
        self,
        guard: DeadGuard,
        batch: Batch,
        outcomes: Sequence[Outcome],
        delivered: Sequence[str],
        rest: Sequence[Settlement],
    ) -> None:
        if not rest:
            guard.watch(batch.events, delivered, {})
            return
        # Topics have breakers of their own, and what dies of its topic dies because somebody wants it so.
        unroutable = {
            event.id
            for event, outcome in zip(batch.events, outcomes, strict=True)
            if isinstance(outcome, Retry) and outcome.fault
        }
        dead = {one.id: one.error or "" for one in rest if one.state == "dead" and one.id not in unroutable}
        done = [one.id for one in rest if one.state == "done"]
        guard.watch(batch.events, [*delivered, *done], dead)

    def _write(self, batch: Batch, delivered: list[str], rest: Sequence[Settlement]) -> int:
        statements = self.source.statements
        if not rest:
            changed = self._deliver(statements.deliver_all, batch, delivered)
        else:
            with self.source.conn.transaction():
                changed = self._deliver(statements.deliver, batch, delivered) if delivered else 0
                changed += self._put_back(rest, batch.token)
        if changed == 0 and self.ownership is not None:
            self.ownership.slots.prove()
        return changed

    def _deliver(self, statement: str, batch: Batch, ids: list[str]) -> int:
        lease = {"token": batch.token, "leased_at": batch.leased_at}
        parameters = {"ids": self.source.statements.pack(ids), **lease, **self._fence()}
        return self.source.change("settle", statement, parameters)

    def _put_back(self, rest: Sequence[Settlement], token: str) -> int:
        parameters = {
            "ids": [one.id for one in rest],
            "states": [one.state for one in rest],
            "counts": [int(one.counted) for one in rest],
            "waits": [None if one.wait is None else one.wait.total_seconds() for one in rest],
            "errors": [one.error for one in rest],
            "kinds": [one.kind for one in rest],
            "token": token,
            **self._fence(),
        }
        return self.source.change("settle", self.source.statements.settle, parameters)

    def _fence(self) -> dict[str, Any]:
        return NO_FENCE if self.ownership is None else self.ownership.fence()

    def _settlement(self, event: Event, outcome: Outcome, destination: Destination | None) -> Settlement:
        match outcome:
            case Held():
                return Settlement(event.id, "pending")
            case Skipped(reason):
                self.source.keys.free(event.order_key, event.id)
                return Settlement(event.id, "done", error=storable(f"skipped: {reason}"))
            case Dead(error, kind):
                return self._dead(event, error, kind)
            case Retry(error, fault="missing" | "forbidden" as fault) if self._lets_unroutable_die():
                return self._dead(event, error, KIND_OF_FAULT[fault])
            case Retry(error, counted=False):
                block = waits_for(event, outcome, destination)
                self.source.keys.wait_for(block, self._key(event), event)
                return Settlement(event.id, "pending", error=storable(error))
            case Retry():
                return self._retry(event, outcome)
            case Delivered():
                raise AssertionError("delivered events are settled together")
            case _:
                assert_never(outcome)

    def _retry(self, event: Event, outcome: Retry) -> Settlement:
        policy = self.source.settings.retry
        failures = event.attempts + 1
        limit = policy.max_attempts if event.max_attempts is None else event.max_attempts
        if failures >= limit and self.source.statements.counts_attempts:
            return self._dead(event, f"gave up after {failures} attempts: {outcome.error}")
        wait = outcome.after or backoff.delay(
            failures, base=policy.base_delay, cap=policy.max_delay, jitter=policy.jitter
        )
        key = self._key(event)
        if key is not None:
            self.source.keys.wait_for_retry(key, event.id, time.monotonic() + wait.total_seconds())
        return Settlement(event.id, "pending", counted=True, wait=wait, error=storable(outcome.error))

    def _dead(self, event: Event, error: str, kind: DeadKind = "other") -> Settlement:
        self.source.keys.free(event.order_key, event.id)
        key = self._key(event)
        if key is not None and self.source.settings.on_dead == "park":
            self.source.keys.parked.add(key)
        return Settlement(event.id, "dead", counted=True, error=storable(error), kind=kind)

    def _lets_unroutable_die(self) -> bool:
        return self.source.settings.on_unroutable == "dead" or self.source.statements.marks_unroutable

    def _tell_dead(self, settlements: Sequence[Settlement]) -> None:
        """One cause for each kind, however many died: the driver tells it once for all lanes."""
        by_kind: dict[str, list[Settlement]] = {}
        for one in settlements:
            if one.state == "dead":
                by_kind.setdefault(one.kind, []).append(one)
        for kind, dead in by_kind.items():
            cause = f"events died: {self.source.name} ({kind})"
            ids = ", ".join(one.id for one in dead[:TOLD])
            self.trouble.raise_(cause, f"{dead[0].error}; the last were {ids}", len(dead))

    def _key(self, event: Event) -> str | None:
        return None if self.ownership is None else event.order_key

    def _count(self, delivered: Sequence[Event], outcomes: Sequence[Outcome], lost: int) -> None:
        name, tally = self.source.name, self.source.tally
        if lost:
            log.warning("leases were lost", extra={"source": name, "events": lost})
            tally.add(metrics.LEASES_LOST_TOTAL, lost, source=name)
        self.source.count("delivered", len(delivered))
        if len(delivered) < len(outcomes):
            for kind, count in Counter(map(type, outcomes)).items():
                if kind is Held:
                    tally.add(metrics.HELD_TOTAL, count, source=name)
                elif kind is not Delivered:
                    self.source.count(kind.__name__.lower(), count)
        # In the time zone of the events: between two zones, each subtraction costs five times as much.
        now = datetime.now(delivered[0].created_at.tzinfo if delivered else None)
        ages = [_seconds(now - event.created_at) for event in delivered]
        if delivered and min(ages) < 0:
            # By the clock of whoever wrote them, they are not written yet.
            ages = [max(age, 0.0) for age in ages]
        tally.observe_many(metrics.E2E_LATENCY, ages, source=name)
