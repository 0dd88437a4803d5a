"""Writes the outcomes of a batch to the table, in one fenced transaction, and tells what became of its keys."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from outspark.contracts.contract import Settlement
from outspark.contracts.relay_statements import DeliverParams, Fence, SettleParams
from outspark.database.side_tables import Deliveries
from outspark.delivery.dead_guard import DeadGuard
from outspark.delivery.dispatcher import NOWHERE, Dispatched
from outspark.event import Event
from outspark.observability import metrics
from outspark.observability.causes import Trouble
from outspark.outcome import Delivered, Held, Outcome, Retry, all_delivered
from outspark.relay.ownership import SlotOwnership
from outspark.relay.settlements import Settlements, Unfinished
from outspark.relay.source import Batch, Source

log = logging.getLogger(__name__)

TOLD = 5
"""Ids in a line about dead events."""
NO_FENCE: Fence = {"source": "", "slots": [], "epochs": []}

_seconds = timedelta.total_seconds


@dataclass(slots=True)
class Settler:
    """Settles the batches of one source. Without an ownership keys do not count, and only tokens fence."""

    source: Source
    ownership: SlotOwnership | None
    deliveries: Deliveries | None = None
    guard: DeadGuard | None = None
    trouble: Trouble = field(default_factory=Trouble)
    _settlements: Settlements = field(init=False)

    def __post_init__(self) -> None:
        self._settlements = Settlements(self.source.settings, self.source.statements)

    def settle(
        self, batch: Batch, dispatched: Dispatched, been: Mapping[str, Collection[str]] = NOWHERE
    ) -> bool:
        """True if every event of the batch was delivered and is marked so.

        OwnershipLost if another owner took the slots; single leases that were lost are only counted.
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
        self.source.keys.settled(delivered, rest)
        if rest:
            self._tell_dead(rest)
        return not rest and changed == len(batch.events)

    def _sort(
        self, events: Sequence[Event], dispatched: Dispatched
    ) -> tuple[Sequence[Event], list[Unfinished]]:
        """The delivered events, and what is to be written of the others."""
        outcomes = dispatched.outcomes
        if len(outcomes) == len(events) and all_delivered(outcomes):
            return events, []
        delivered: list[Event] = []
        rest: list[Unfinished] = []
        for event, outcome, destination in zip(events, outcomes, dispatched.destinations, strict=True):
            if isinstance(outcome, Delivered):
                delivered.append(event)
            else:
                rest.append(self._settlements.of(event, outcome, destination))
        return delivered, rest

    def _watch_deaths(
        self,
        guard: DeadGuard,
        batch: Batch,
        outcomes: Sequence[Outcome],
        delivered: Sequence[str],
        rest: Sequence[Unfinished],
    ) -> None:
        if not rest:
            guard.watch(batch.events, delivered, {})
            return
        # Topics have breakers of their own, and an event that dies of its topic does so because the settings say so.
        unroutable = {
            event.id
            for event, outcome in zip(batch.events, outcomes, strict=True)
            if isinstance(outcome, Retry) and outcome.fault
        }
        written = [one.settlement for one in rest]
        dead = {
            one.id: one.error or "" for one in written if one.state == "dead" and one.id not in unroutable
        }
        done = [one.id for one in written if one.state == "done"]
        guard.watch(batch.events, [*delivered, *done], dead)

    def _write(self, batch: Batch, delivered: list[str], rest: Sequence[Unfinished]) -> int:
        source, statements = self.source, self.source.statements
        parameters: DeliverParams = {
            "ids": statements.pack(delivered),
            "token": batch.token,
            "leased_at": batch.leased_at,
            **self._fence(),
        }
        if not rest:
            changed = source.change("settle", statements.deliver_all, parameters)
        else:
            with source.conn.transaction():
                changed = source.change("settle", statements.deliver, parameters) if delivered else 0
                changed += self._put_back(rest, batch.token)
        if changed == 0 and self.ownership is not None:
            self.ownership.slots.prove()
        return changed

    def _put_back(self, rest: Sequence[Unfinished], token: str) -> int:
        written = [one.settlement for one in rest]
        parameters: SettleParams = {
            "ids": [one.id for one in written],
            "states": [one.state for one in written],
            "counts": [int(one.counted) for one in written],
            "waits": [None if one.wait is None else one.wait.total_seconds() for one in written],
            "errors": [one.error for one in written],
            "kinds": [one.kind for one in written],
            "token": token,
            **self._fence(),
        }
        return self.source.change("settle", self.source.statements.settle, parameters)

    def _fence(self) -> Fence:
        return NO_FENCE if self.ownership is None else self.ownership.fence()

    def _tell_dead(self, rest: Sequence[Unfinished]) -> None:
        """Report one cause for each kind, however many events died: the driver logs it once for all lanes."""
        by_kind: dict[str, list[Settlement]] = {}
        for _, one, _ in rest:
            if one.state == "dead":
                by_kind.setdefault(one.kind, []).append(one)
        for kind, dead in by_kind.items():
            cause = f"events died: {self.source.name} ({kind})"
            ids = ", ".join(one.id for one in dead[:TOLD])
            self.trouble.raise_(cause, f"{dead[0].error}; the last were {ids}", len(dead))

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
            # The writer's clock is ahead of the lane's.
            ages = [max(age, 0.0) for age in ages]
        tally.observe_many(metrics.E2E_LATENCY, ages, source=name)
