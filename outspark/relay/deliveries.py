"""Where the events of a fan-out have been already, so that a retry goes only where it is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from outspark.contracts import deliveries as statements
from outspark.contracts.names import TableName
from outspark.contracts.slots import EXISTS
from outspark.errors import DeliveriesTableMissing
from outspark.relay.connection import Connection


@dataclass(slots=True)
class Deliveries:
    """The partial deliveries of one source. Written in the transaction that settles the batch."""

    conn: Connection
    table: TableName

    def prepare(self) -> None:
        name = statements.deliveries_table(self.table)
        row = self.conn.execute(EXISTS, {"name": name.identifier.as_string(None)}).fetchone()
        if row is None or not row[0]:
            raise DeliveriesTableMissing(str(name), statements.compose(statements.CREATE, self.table))

    def look_up(self, ids: list[str]) -> dict[str, set[str]]:
        """Event id -> destinations that have it."""
        found: dict[str, set[str]] = {}
        for id, destination in self._execute(statements.LOOK_UP, {"ids": ids}).fetchall():
            found.setdefault(id, set()).add(destination)
        return found

    def record(self, partial: Mapping[str, Iterable[str]]) -> None:
        pairs = [(id, destination) for id, destinations in partial.items() for destination in destinations]
        if pairs:
            ids, destinations = zip(*pairs, strict=True)
            self._execute(statements.RECORD, {"ids": list(ids), "destinations": list(destinations)})

    def forget(self, ids: Collection[str]) -> None:
        if ids:
            self._execute(statements.FORGET, {"ids": list(ids)})

    def _execute(self, statement: str, parameters: dict[str, object]) -> psycopg.Cursor[tuple[Any, ...]]:
        return self.conn.execute(
            statements.compose(statement, self.table), {"source": str(self.table), **parameters}
        )
