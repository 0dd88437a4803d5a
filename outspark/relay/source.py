"""One source as a lane works on it: its connection, its statements, what is blocked and what is counted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from outspark.config.settings import SourceSettings
from outspark.contracts.maintenance import TableMaintenance
from outspark.contracts.relay_statements import Claim, Command, Params, Query, RelayStatements, Row
from outspark.database.session import Connection
from outspark.event import Event
from outspark.observability import metrics
from outspark.observability.metrics import Tally
from outspark.relay.blocked_keys import BlockedKeys


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one claim, in its order."""

    events: list[Event]
    token: str
    leased_at: datetime | None
    """By the database's clock; None where a claim writes nothing."""
    cut: bool = False
    """Did the bound on bytes end the claim? Then there may be more events."""


NOTHING = Batch([], "", None)


@dataclass(slots=True)
class Source:
    name: str
    settings: SourceSettings
    conn: Connection
    statements: RelayStatements
    maintenance: TableMaintenance
    tally: Tally
    keys: BlockedKeys = field(init=False)
    answered: float = 0.0
    """When the database last answered on this connection, on the monotonic clock."""

    def __post_init__(self) -> None:
        self.keys = BlockedKeys(
            ordered=self.settings.ordering == "key", parks=self.settings.on_dead == "park"
        )

    def query(self, op: str, statement: Query[Params, Row], parameters: Params) -> list[Row]:
        return [statement.row(row) for row in self.execute(op, statement.text, parameters)]

    def execute(self, op: str, statement: str, parameters: Mapping[str, object]) -> list[tuple[Any, ...]]:
        started = time.monotonic()
        rows = self.conn.execute(statement, parameters, binary=True).fetchall()
        self.answered = time.monotonic()
        self.tally.observe(metrics.STORAGE_LATENCY, self.answered - started, source=self.name, op=op)
        return rows

    def change(self, op: str, statement: Command[Params], parameters: Params) -> int:
        """How many rows the statement really changed."""
        started = time.monotonic()
        changed = self.conn.execute(statement.text, parameters).rowcount
        self.answered = time.monotonic()
        self.tally.observe(metrics.STORAGE_LATENCY, self.answered - started, source=self.name, op=op)
        return changed

    def claim(self, statement: Claim[Params], parameters: Params, token: str) -> Batch:
        started = time.monotonic()
        rows = self.execute("claim", statement.text, parameters)
        if (timer := self.statements.claim_timer) is not None:
            self.tally.observe(timer.name, time.monotonic() - started, source=self.name, **timer.labels)
        leased_at, cut = rows[0][-2:] if rows else (None, False)
        return Batch(self.statements.read(rows), token, leased_at, cut)

    def count(self, status: str, events: int) -> None:
        if events:
            self.tally.add(metrics.EVENTS_TOTAL, events, source=self.name, status=status)
