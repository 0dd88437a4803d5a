"""A history: what was committed, what the lanes did, and what the table says in the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from tests.history.journal import Entry
from tests.history.publisher import Behaviour


@dataclass(frozen=True, slots=True)
class Written:
    """An event as its transaction committed it; `due` only when it was scheduled for later.

    `key` is what order is kept by, or None where it has no order.
    """

    id: UUID
    key: str | None
    created_at: datetime
    behaviour: Behaviour
    due: datetime | None = None
    number: int = 0
    """Its place, where the contract counts by ids that rise."""

    def earlier(self, by: timedelta) -> Written:
        """The same event, as if it had been written that much earlier."""
        due = None if self.due is None else self.due - by
        return replace(self, created_at=self.created_at - by, due=due)

    @property
    def harness(self) -> tuple[int, datetime, UUID]:
        """Its place in the order of its key."""
        return self.number, self.created_at, self.id


@dataclass(frozen=True, slots=True)
class Row:
    """An event as the table has it in the end."""

    status: str
    attempts: int
    locked_by: str | None


@dataclass(frozen=True, slots=True)
class Rules:
    """How the relays were configured, as far as it decides what is right."""

    max_attempts: int
    batch_size: int
    ordering: Literal["key", "none"] = "key"
    lease: Literal["row", "slot"] = "row"
    on_dead: Literal["continue", "park"] = "continue"
    counts_failures: bool = True
    """Is a failure an attempt? Else only the death of a lane is."""


@dataclass(frozen=True, slots=True)
class History:
    rules: Rules
    written: dict[UUID, Written]
    rows: dict[UUID, Row]
    entries: list[Entry]
    killed: set[str] = field(default_factory=set)
    """Processes that ended by SIGKILL, whoever sent it."""
    broker_stops: int = 0
    """How often a real broker was stopped or killed."""


def with_arrivals(entries: Sequence[Entry], arrivals: Sequence[str]) -> list[Entry]:
    """The journal with what a broker really has, in the broker's order, by the names of the sendings.

    Each delivery stands at the earliest moment that is possible: after it was sent, and after what arrived before it.
    """
    lines = {entry.send: number for number, entry in enumerate(entries) if entry.deed == "sent"}
    deliveries: dict[int, list[Entry]] = defaultdict(list)
    moment = 0
    for send in arrivals:
        moment = max(moment, lines[send])
        deliveries[moment].append(replace(entries[lines[send]], deed="delivered"))
    return [line for number, entry in enumerate(entries) for line in (entry, *deliveries[number])]
