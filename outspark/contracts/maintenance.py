"""What maintenance asks of a contract, in words that hold for every table: no status, column or SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, runtime_checkable

import psycopg

from outspark.errors import SettingsError

Finished = Literal["delivered", "dead"]
"""The two ways an event ends; each has its own retention."""


@dataclass(frozen=True, slots=True)
class Stats:
    """An outbox at one moment. `pending` counts all that wait; `backoff` and `scheduled` are part of it."""

    pending: int
    """Not delivered yet, and claimed by no relay."""
    backoff: int
    """Failed before, and waiting for the next try."""
    scheduled: int
    """Never tried, and due later."""
    delivering: int
    """Claimed by a relay."""
    dead: int
    delivered: int | None
    """An estimate of the planner's unless it was asked for exactly; None before the first ANALYZE."""
    delivered_exact: bool
    oldest_age: timedelta | None
    """Since the oldest pending event was made."""
    due_age: timedelta | None
    """Since the pending event that waits longest was due: how far behind the relay is."""
    oldest_lease: timedelta | None
    """Since the oldest claim that is still open."""


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead events are meant: those that fit every part that is given. Times are when the event died."""

    ids: tuple[str, ...] | None = None
    type: str | None = None
    """A pattern such as `order.*`."""
    key: str | None = None
    error: str | None = None
    """A part of the error, in any case."""
    since: datetime | None = None
    before: datetime | None = None
    after: str | None = None
    """Only ids after this one; they come in the order of their ids then, page by page."""
    requeued: bool = False
    """Those that were requeued and are still to be sent, where a contract keeps them apart, instead of the others."""


@dataclass(frozen=True, slots=True)
class DeadEvent:
    """A dead event. `payload` is empty in lists, which carry only its size."""

    id: str
    type: str
    key: str | None
    attempts: int
    error: str | None
    created_at: datetime
    died_at: datetime
    headers: Any
    payload_size: int
    payload: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class PrunedBatch:
    deleted: int
    mark: datetime | None
    """How far the batch came; the next one starts there, and need not step over the dead rows again."""


@dataclass(frozen=True, slots=True)
class Reaped:
    """Ids whose lease ran out: back in the queue, or dead because that was their last attempt."""

    returned: tuple[str, ...]
    dead: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gauge:
    """A figure that the contract's own relay shows, under its name."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


class TableMaintenance(Protocol):
    """Each call is one statement on `conn` and commits nothing. Results say what was really changed."""

    def now(self, conn: psycopg.Connection[Any]) -> datetime:
        """The database's clock, which decides every age."""
        ...

    def stats(self, conn: psycopg.Connection[Any], *, exact: bool) -> Stats: ...

    def gauges(self, conn: psycopg.Connection[Any], stats: Stats) -> list[Gauge]:
        """What the contract's own relay would show besides."""
        ...

    def count_dead(self, conn: psycopg.Connection[Any], which: DeadFilter) -> int: ...

    def list_dead(self, conn: psycopg.Connection[Any], which: DeadFilter, limit: int) -> list[DeadEvent]:
        """The latest first."""
        ...

    def show_dead(self, conn: psycopg.Connection[Any], id: str) -> DeadEvent | None: ...

    def requeue(self, conn: psycopg.Connection[Any], which: DeadFilter, limit: int) -> list[str]:
        """Give dead events another life with all their attempts, at their old position in their key's order."""
        ...

    def discard(self, conn: psycopg.Connection[Any], which: DeadFilter, limit: int) -> list[str]:
        """Delete dead events for good."""
        ...

    def count_finished(self, conn: psycopg.Connection[Any], how: Finished, before: datetime) -> int: ...

    def prune(
        self,
        conn: psycopg.Connection[Any],
        how: Finished,
        before: datetime,
        mark: datetime | None,
        limit: int,
    ) -> PrunedBatch:
        """Delete the next batch, oldest first, passing over rows that another session has locked."""
        ...

    def forget_settled(self, conn: psycopg.Connection[Any]) -> None:
        """Drop what Outspark's small tables remember of events that are settled or gone; harmless without them."""
        ...

    def reap(
        self, conn: psycopg.Connection[Any], lease: timedelta, max_attempts: int, limit: int
    ) -> Reaped: ...


@runtime_checkable
class Unlocking(Protocol):
    """Maintenance of a contract that lets an operator unlock events that a relay or a worker holds."""

    def unlock(self, conn: psycopg.Connection[Any], ids: list[str], reason: str) -> list[str]:
        """The reason stays with them; answers those that were held."""
        ...


def require_reason(reason: str) -> None:
    if not reason.strip():
        raise SettingsError("a forced unlock needs a reason, which is kept in last_error")


def like(pattern: str) -> str:
    r"""`order_*` becomes `order\_%`."""
    escaped = "".join(f"\\{character}" if character in "\\%_" else character for character in pattern)
    return escaped.replace("*", "%")
