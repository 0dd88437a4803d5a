"""One source as a lane works on it: its connection, its statements, what is blocked and what is counted."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from outspark.config.settings import SourceSettings
from outspark.contracts.contract import RelayStatements
from outspark.contracts.maintenance import TableMaintenance
from outspark.database.session import Connection
from outspark.event import Event
from outspark.observability import metrics
from outspark.observability.metrics import Tally
from outspark.relay.blocked_keys import BlockedKeys


@dataclass(frozen=True, slots=True)
class Batch:
    """What one claim brought, in its order."""

    events: list[Event]
    token: str
    leased_at: datetime | None
    """By the database's clock; None where a claim leaves no mark."""
    cut: bool = False
    """Did the claim end where its bytes reached the bound? Then there may be more."""


NOTHING = Batch([], "", None)


@dataclass(slots=True)
class Source:
    name: str
    settings: SourceSettings
    conn: Connection
    statements: RelayStatements
    maintenance: TableMaintenance
    tally: Tally
    keys: BlockedKeys = field(default_factory=BlockedKeys)
    answered: float = 0.0
    """When the database last answered on this connection, on the monotonic clock."""

    def execute(self, op: str, statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        started = time.monotonic()
        rows = self.conn.execute(statement, parameters, binary=True).fetchall()
        self.answered = time.monotonic()
        self.tally.observe(metrics.STORAGE_LATENCY, self.answered - started, source=self.name, op=op)
        return rows

    def change(self, op: str, statement: str, parameters: dict[str, Any]) -> int:
        """Run a settle; how many rows it really changed."""
        started = time.monotonic()
        changed = self.conn.execute(statement, parameters).rowcount
        self.answered = time.monotonic()
        self.tally.observe(metrics.STORAGE_LATENCY, self.answered - started, source=self.name, op=op)
        return changed

    def claim(self, statement: str, token: str, parameters: dict[str, Any]) -> Batch:
        started = time.monotonic()
        rows = self.execute("claim", statement, {"token": token, **parameters})
        if (timer := self.statements.claim_timer) is not None:
            self.tally.observe(timer.name, time.monotonic() - started, source=self.name, **timer.labels)
        leased_at, cut = rows[0][-2:] if rows else (None, False)
        return Batch(self.statements.read(rows), token, leased_at, cut)

    def count(self, status: str, events: int) -> None:
        if events:
            self.tally.add(metrics.EVENTS_TOTAL, events, source=self.name, status=status)
