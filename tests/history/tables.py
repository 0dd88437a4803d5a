"""How a history writes to an outbox, and reads what became of its events: the one part that knows a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import psycopg

from outspark.contracts.openoutbox.table import ddl
from outspark.outbox.new_event import NewEvent
from outspark.outbox.openoutbox import Outbox
from tests.history.history import Written
from tests.history.publisher import Behaviour, Conduct


@dataclass(frozen=True, slots=True)
class Draft:
    """An event to be written. `immediate` ones are sent by their writer after its commit, where a table knows that."""

    key: str | None
    behaviour: Behaviour = Behaviour.PASS
    delay: timedelta | None = None
    type: str = "t"
    immediate: bool = False
    abandoned: bool = False
    """Its writer dies between its commit and the sending."""


@dataclass(slots=True)
class Transaction(ABC):
    """One open transaction of a service. Its keys are its own until it ends, as if their aggregates were locked."""

    conn: psycopg.Connection[Any]
    written: list[Written] = field(default_factory=list)
    types: set[str] = field(default_factory=set)

    def write(self, drafts: list[Draft]) -> None:
        self.written += self._write(drafts)
        self.types |= {draft.type for draft in drafts}

    @property
    def keys(self) -> set[str | None]:
        return {event.key for event in self.written}

    @abstractmethod
    def _write(self, drafts: list[Draft]) -> list[Written]: ...

    def commit(self) -> None:
        self.conn.commit()

    def roll_back(self) -> None:
        self.conn.rollback()


class Table(ABC):
    """The outbox of one contract. `unfinished` counts what is left to do, `rows` says what the table knows."""

    source: ClassVar[Mapping[str, Any]]
    """Settings of every source with such a table."""
    counts_failures: ClassVar[bool]
    unfinished: ClassVar[str]
    rows: ClassVar[str]

    def __init__(self, conduct: Conduct) -> None:
        self._conduct = conduct

    @abstractmethod
    def create(self, conn: psycopg.Connection[Any]) -> None: ...

    @abstractmethod
    def begin(self, conn: psycopg.Connection[Any]) -> Transaction: ...

    @abstractmethod
    def close(self) -> None:
        """Let go of what the writers needed."""


class OpenOutboxTransaction(Transaction):
    def _write(self, drafts: list[Draft]) -> list[Written]:
        new = [
            NewEvent(draft.type, draft.behaviour.payload, draft.key, delay=draft.delay) for draft in drafts
        ]
        Outbox().enqueue(self.conn, *new)
        return [self._written(event, draft) for event, draft in zip(new, drafts, strict=True)]

    def _written(self, event: NewEvent, draft: Draft) -> Written:
        query = "SELECT created_at, available_at FROM openoutbox_events WHERE event_id = %s"
        ((created, available),) = self.conn.execute(query, [event.id]).fetchall()
        due = None if draft.delay is None else available
        return Written(event.id, draft.key, created, draft.behaviour, due)


class OpenOutboxTable(Table):
    source: ClassVar[Mapping[str, Any]] = {}
    counts_failures = True
    unfinished = """\
-- What the relays still have to do; of a parked key there is nothing left
SELECT count(*) FROM openoutbox_events e
WHERE status IN ('PENDING', 'DELIVERING') AND NOT (%(park)s AND EXISTS (
  SELECT 1 FROM openoutbox_events d WHERE d.status = 'DEAD' AND d.partition_key = e.partition_key))"""
    rows = "SELECT event_id, status, attempts, locked_by FROM openoutbox_events"

    def create(self, conn: psycopg.Connection[Any]) -> None:
        conn.execute(ddl())

    def begin(self, conn: psycopg.Connection[Any]) -> Transaction:
        return OpenOutboxTransaction(conn)

    def close(self) -> None:
        """Writers need nothing but their connection."""
