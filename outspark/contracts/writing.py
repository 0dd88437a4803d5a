"""How commands and inboxes write into an outbox whatever its contract; services have the richer `outspark.outbox`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import psycopg

from outspark.config.importing import find
from outspark.database.names import TableName
from outspark.uuid7 import uuid7


@dataclass(frozen=True, slots=True)
class PlainEvent:
    """An event as `outspark enqueue` reads it, for a contract to check: text, bytes or JSON with a type."""

    type: str
    payload: Any
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    id: UUID = field(default_factory=uuid7)
    available_at: datetime | None = None
    delay: timedelta | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What a dead letter says about an event of an inbox."""

    event_id: str
    event_type: str
    """May be blank: it is what the message brought."""
    topic: str
    """Where the letter goes."""
    key: str
    body: str
    """JSON."""
    headers: Mapping[str, str]


class OutboxWriter(Protocol):
    """Writes into one outbox. Everything happens in the transaction of `conn`, and nothing is committed."""

    def enqueue(self, conn: psycopg.Connection[Any], events: Sequence[PlainEvent]) -> list[str]:
        """The ids that are new, in the given order. EventInvalid for what the outbox cannot hold."""
        ...

    def write_dead_letter(self, conn: psycopg.Connection[Any], letter: DeadLetter) -> None:
        """Large letters too. EventInvalid for what the outbox cannot hold, SettingsError where it takes none."""
        ...


def application_side(name: str, table: TableName) -> OutboxWriter:
    """The writer `module:class` for a table. It stands above the contracts, with what services use."""
    writer = find("outbox_writer", name, "class")
    assert isinstance(writer, type)
    made: OutboxWriter = writer(table)
    return made
