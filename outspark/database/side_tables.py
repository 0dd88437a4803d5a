"""Outspark's small tables beside an outbox: `outspark_deliveries` and `outspark_attempts`, and their statements.

`outspark_deliveries` has a row for each destination that already has an event that goes to several. `outspark_attempts`
is for contracts whose rows have no room for attempts: it has a row only for an event that was in flight when its lane
crashed.
"""

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

ATTEMPTS_TABLE = "outspark_attempts"
DELIVERIES_TABLE = "outspark_deliveries"

CREATE_DELIVERIES = """\
-- Which destinations already have an event that is not delivered to all of them yet
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

FORGET_DELIVERIES = """\
-- These events are delivered to all their destinations.
DELETE FROM {deliveries_table} WHERE source = %(source)s AND event_id = ANY(%(ids)s::text[])"""


CREATE_ATTEMPTS = """\
-- How often an event was in flight when its lane crashed: one that kills its lane must come to an end.
CREATE TABLE IF NOT EXISTS {attempts_table} (
    source text NOT NULL,
    event_id text NOT NULL,
    attempts integer NOT NULL,
    error text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (source, event_id)
)"""

FORGET_ATTEMPTS = """\
-- These events begin anew.
DELETE FROM {attempts_table} WHERE source = %(source)s AND event_id = ANY(%(ids)s::text[])"""


def deliveries_table(outbox: TableName) -> TableName:
    return TableName(DELIVERIES_TABLE, outbox.schema)


def attempts_table(outbox: TableName) -> TableName:
    return TableName(ATTEMPTS_TABLE, outbox.schema)


def compose(template: str, outbox: TableName) -> str:
    """The tables live beside the outbox, in the same schema."""
    names = {
        "attempts_table": attempts_table(outbox).identifier,
        "deliveries_table": deliveries_table(outbox).identifier,
    }
    return sql.SQL(template).format(**names).as_string(None)


@dataclass(slots=True)
class Deliveries:
    """The partial deliveries of one source, written in the transaction that settles the batch."""

    conn: Connection
    table: TableName

    def prepare(self) -> None:
        name = deliveries_table(self.table)
        row = self.conn.execute(EXISTS, {"name": name.identifier.as_string(None)}).fetchone()
        if row is None or not row[0]:
            raise DeliveriesTableMissing(str(name), compose(CREATE_DELIVERIES, self.table))

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
            self._execute(FORGET_DELIVERIES, {"ids": list(ids)})

    def _execute(self, statement: str, parameters: dict[str, object]) -> psycopg.Cursor[tuple[Any, ...]]:
        return self.conn.execute(compose(statement, self.table), {"source": str(self.table), **parameters})
