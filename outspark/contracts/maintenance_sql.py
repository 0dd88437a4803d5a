"""Maintenance by the statements of a contract: what differs from table to table is text, how it is run is here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import class_row, tuple_row

from outspark.contracts.maintenance import (
    DeadEvent,
    DeadFilter,
    Finished,
    Gauge,
    PrunedBatch,
    Reaped,
    Stats,
    like,
)
from outspark.database.names import TableName
from outspark.database.side_tables import deliveries_table
from outspark.database.slots import EXISTS
from outspark.errors import SettingsError

NOW = "SELECT clock_timestamp()"

COUNT_DEAD = """
-- How many dead events fit
SELECT count(*) FROM {table} WHERE {which}"""

# Ordered by the column itself: the name alone may be that of the text that is answered.
LIST_DEAD = """
-- Dead events that fit, the latest first, without their payload
SELECT {dead_event} FROM {table} WHERE {which} ORDER BY {died} DESC, {table}.{id} LIMIT %(limit)s"""

PAGE_DEAD = """
-- The next page of dead events, in the order of their ids
SELECT {dead_event} FROM {table} WHERE {which} ORDER BY {table}.{id} LIMIT %(limit)s"""

FORGET_DELIVERIES = """
-- Forget where events have been that are not there any more
WITH forgotten AS (
  DELETE FROM {deliveries_table} d
  WHERE d.source = %(source)s AND NOT EXISTS (SELECT 1 FROM {table} e WHERE e.{id} = d.event_id::{id_type})
  RETURNING 1
)
SELECT count(*) FROM forgotten"""


def uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise SettingsError(f"id = {text!r} is not an event id; allowed: a UUID") from error


def whole_number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise SettingsError(f"id = {text!r} is not an event id; allowed: a whole number")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSql:
    """Templates of one contract. `{table}`, `{id}`, `{which}` and `{dead_event}` stand for what their names say."""

    stats: str
    """With `{delivered}` for one of the next two."""
    delivered_exactly: str
    delivered_estimate: str
    which: str
    """What makes an event dead, and the parts of a `DeadFilter`."""
    dead_event: str
    """The columns of a `DeadEvent` but for its payload."""
    died: str = "updated_at"
    """The column by which the latest come first."""
    show_dead: str
    requeue: str
    discard: str
    finished: Mapping[Finished, Mapping[str, str]]
    """What the next two have in braces, for each way to end."""
    count_finished: str
    prune: str
    reap: str = ""
    """Answers id and whether it is dead now; empty where a claim leaves no mark."""
    id: str = "id"
    id_type: str = "uuid"
    read_id: Callable[[str], object] = uuid


class SqlMaintenance:
    """`TableMaintenance` for one table."""

    statements: ClassVar[MaintenanceSql]

    def __init__(self, table: TableName) -> None:
        self._table = table

    def now(self, conn: psycopg.Connection[Any]) -> datetime:
        now: datetime = self._rows(conn, NOW, {})[0][0]
        return now

    def stats(self, conn: psycopg.Connection[Any], *, exact: bool) -> Stats:
        known = self.statements
        delivered = self._compose(
            known.delivered_exactly if exact else known.delivered_estimate,
            name=sql.Literal(self._table.identifier.as_string(None)),
        )
        statement = self._compose(known.stats, delivered=delivered)
        with psycopg.Cursor(conn, row_factory=class_row(Stats)) as cursor:
            stats = cursor.execute(statement, self._bind({"exact": exact})).fetchone()
        assert stats is not None, "an aggregate always answers one row"
        return stats

    def gauges(self, conn: psycopg.Connection[Any], stats: Stats) -> list[Gauge]:
        return []

    def count_dead(self, conn: psycopg.Connection[Any], which: DeadFilter) -> int:
        return int(self._rows(conn, COUNT_DEAD, self._filter(which))[0][0])

    def list_dead(self, conn: psycopg.Connection[Any], which: DeadFilter, limit: int) -> list[DeadEvent]:
        statement = LIST_DEAD if which.after is None else PAGE_DEAD
        return self._dead_events(conn, statement, {**self._filter(which), "limit": limit})

    def show_dead(self, conn: psycopg.Connection[Any], id: str) -> DeadEvent | None:
        found = self._dead_events(conn, self.statements.show_dead, {"id": self.statements.read_id(id)})
        return found[0] if found else None

    def requeue(self, conn: psycopg.Connection[Any], which: DeadFilter, limit: int) -> list[str]:
        return self._ids(conn, self.statements.requeue, {**self._filter(which), "limit": limit})

    def discard(self, conn: psycopg.Connection[Any], which: DeadFilter, limit: int) -> list[str]:
        return self._ids(conn, self.statements.discard, {**self._filter(which), "limit": limit})

    def count_finished(self, conn: psycopg.Connection[Any], how: Finished, before: datetime) -> int:
        parameters = {"before": before, "mark": None}
        return int(self._rows(conn, self.statements.count_finished, parameters, **self._finished(how))[0][0])

    def prune(
        self,
        conn: psycopg.Connection[Any],
        how: Finished,
        before: datetime,
        mark: datetime | None,
        limit: int,
    ) -> PrunedBatch:
        parameters = {"before": before, "mark": mark, "limit": limit}
        return PrunedBatch(*self._rows(conn, self.statements.prune, parameters, **self._finished(how))[0])

    def forget_settled(self, conn: psycopg.Connection[Any]) -> None:
        name = deliveries_table(self._table).identifier
        if self._is_there(conn, name):
            parts = {"deliveries_table": name, "id_type": sql.SQL(self.statements.id_type)}
            self._rows(conn, FORGET_DELIVERIES, {"source": str(self._table)}, **parts)

    def reap(self, conn: psycopg.Connection[Any], lease: timedelta, max_attempts: int, limit: int) -> Reaped:
        if not self.statements.reap:
            return Reaped((), ())
        parameters = {"lease": lease, "max_attempts": max_attempts, "limit": limit}
        rows = self._rows(conn, self.statements.reap, parameters)
        return Reaped(
            returned=tuple(id for id, dead in rows if not dead), dead=tuple(id for id, dead in rows if dead)
        )

    def _parts(self) -> dict[str, sql.Composable]:
        """What else the statements of this contract have in braces."""
        return {}

    def _bind(self, parameters: Mapping[str, object]) -> Mapping[str, object]:
        """The parameters, and those that all statements of this contract have."""
        return parameters

    def _key(self, key: str) -> object:
        """A key as the table has it."""
        return key

    def _filter(self, which: DeadFilter) -> dict[str, object]:
        read_id = self.statements.read_id
        return {
            "ids": None if which.ids is None else [read_id(id) for id in which.ids],
            "after": None if which.after is None else read_id(which.after),
            "type": None if which.type is None else like(which.type),
            "key": None if which.key is None else self._key(which.key),
            "error": which.error,
            "since": which.since,
            "before": which.before,
            "requeued": which.requeued,
        }

    def _finished(self, how: Finished) -> dict[str, sql.Composable]:
        return {name: sql.SQL(text) for name, text in self.statements.finished[how].items()}

    def _compose(self, template: str, **parts: sql.Composable) -> sql.Composed:
        known, own = self.statements, self._parts()
        return sql.SQL(template).format(
            table=self._table.identifier,
            id=sql.Identifier(known.id),
            died=sql.Identifier(known.died),
            which=sql.SQL(known.which).format(**own),
            dead_event=sql.SQL(known.dead_event).format(**own),
            **own,
            **parts,
        )

    def _is_there(self, conn: psycopg.Connection[Any], name: sql.Identifier) -> bool:
        return bool(self._rows(conn, EXISTS, {"name": name.as_string(None)})[0][0])

    def _dead_events(
        self, conn: psycopg.Connection[Any], template: str, parameters: Mapping[str, object]
    ) -> list[DeadEvent]:
        with psycopg.Cursor(conn, row_factory=class_row(DeadEvent)) as cursor:
            return cursor.execute(self._compose(template), self._bind(parameters)).fetchall()

    def _ids(
        self, conn: psycopg.Connection[Any], template: str, parameters: Mapping[str, object]
    ) -> list[str]:
        return [row[0] for row in self._rows(conn, template, parameters)]

    def _rows(
        self,
        conn: psycopg.Connection[Any],
        template: str,
        parameters: Mapping[str, object],
        **parts: sql.Composable,
    ) -> list[Any]:
        with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
            return cursor.execute(self._compose(template, **parts), self._bind(parameters)).fetchall()
