"""The table `outspark_deliveries`: which destinations of an event with several already have it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from outspark.database.names import TableName
from outspark.database.session import Connection
from outspark.database.slots import EXISTS
from outspark.errors import DeliveriesTableMissing

DELIVERIES_TABLE = "outspark_deliveries"

CREATE = """\
-- Which destinations already have an event that is not delivered to all of them yet.
CREATE TABLE IF NOT EXISTS {deliveries_table} (
    source text NOT NULL,
    event_id text NOT NULL,
    destination text NOT NULL,
    delivered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (source, event_id, destination)
)"""

LOOK_UP = """\
-- Which destinations have these events already?
SELECT event_id, destination FROM {deliveries_table}
WHERE source = %(source)s AND event_id = ANY(%(ids)s::text[])"""

RECORD = """\
-- Record which destinations have these events.
INSERT INTO {deliveries_table} (source, event_id, destination)
SELECT %(source)s, * FROM unnest(%(ids)s::text[], %(destinations)s::text[])
ON CONFLICT DO NOTHING"""

FORGET = """\
-- These events are delivered to all their destinations.
DELETE FROM {deliveries_table} WHERE source = %(source)s AND event_id = ANY(%(ids)s::text[])"""


def deliveries_table(outbox: TableName) -> TableName:
    """The table is in the schema of the outbox."""
    return TableName(DELIVERIES_TABLE, outbox.schema)


def compose(template: str, outbox: TableName) -> str:
    return sql.SQL(template).format(deliveries_table=deliveries_table(outbox).identifier).as_string(None)


@dataclass(slots=True)
class Deliveries:
    """The partial deliveries of one source, written in the transaction that settles the batch."""

    conn: Connection
    table: TableName

    def prepare(self) -> None:
        name = deliveries_table(self.table)
        row = self.conn.execute(EXISTS, {"name": name.identifier.as_string(None)}).fetchone()
        if row is None or not row[0]:
            raise DeliveriesTableMissing(str(name), compose(CREATE, self.table))

    def look_up(self, ids: list[str]) -> dict[str, set[str]]:
        """Event id -> destinations that have it."""
        found: dict[str, set[str]] = {}
        for id, destination in self._execute(LOOK_UP, {"ids": ids}).fetchall():
            found.setdefault(id, set()).add(destination)
        return found

    def record(self, partial: Mapping[str, Iterable[str]]) -> None:
        pairs = [(id, destination) for id, destinations in partial.items() for destination in destinations]
        if pairs:
            ids, destinations = zip(*pairs, strict=True)
            self._execute(RECORD, {"ids": list(ids), "destinations": list(destinations)})

    def forget(self, ids: Collection[str]) -> None:
        if ids:
            self._execute(FORGET, {"ids": list(ids)})

    def _execute(self, statement: str, parameters: dict[str, object]) -> psycopg.Cursor[tuple[Any, ...]]:
        return self.conn.execute(compose(statement, self.table), {"source": str(self.table), **parameters})
