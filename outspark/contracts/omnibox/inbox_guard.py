"""What the guard over handlers writes into an inbox and reads from it: which types are paused, and how much waits.

A paused type shows in the table alone: some of its events carry an error that begins with `PAUSED`. So the next worker
finds it, on any machine, and so does every session that asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from outspark.database.names import TableName
from outspark.database.predicates import hide_from_planner

PAUSED: Final = "paused: "
"""How the last error of an event begins that failed with all others of its type."""

REMEDY: Final = "mend the handler and start the workers again; the first event that passes ends the pause"

_WHAT = "(e.source || chr(10) || e.event_type)"

# Where order counts, an event with a key is claimed in its turn and held in the worker's hands: what stands behind it
# must not overtake it.
_BESIDE = f"""
    AND ({{keyed}} OR {_WHAT} <> ALL(%(paused)s::text[]))
    AND (%(only)s::text[] IS NULL OR (NOT {{keyed}} AND {_WHAT} = ANY(%(only)s::text[])))"""

# The words of the index on scheduled_at, and those of the index on locked_at.
_FREE = """e.status = 'pending' AND e.locked_at IS NULL AND e.attempts_made < e.max_attempts
    AND e.consumer_group = %(group)s"""
_LOCKED = """e.locked_at IS NOT NULL AND {still_pending} AND e.consumer_group = %(group)s"""

MARKS = f"""
-- Which types are paused, since when, and why?
SELECT m.event_type, m.source, min(m.updated_at), min(m.last_error) FROM (
  SELECT e.event_type, e.source, e.updated_at, e.last_error FROM {{table}} e
  WHERE {_FREE} AND starts_with(e.last_error, {{paused}})
  UNION ALL
  SELECT e.event_type, e.source, e.updated_at, e.last_error FROM {{table}} e
  WHERE {_LOCKED} AND starts_with(e.last_error, {{paused}})
) m GROUP BY m.event_type, m.source ORDER BY m.event_type, m.source"""

WAITING = f"""
-- How many events wait of these types?
SELECT count(*) FROM {{table}} e WHERE {_FREE} AND {_WHAT} = ANY(%(types)s::text[])"""

MARK = f"""
-- Let one event that waits show that its type is paused
WITH chosen AS MATERIALIZED (
  SELECT e.id, e.created_at FROM {{table}} e WHERE {_FREE} AND {_WHAT} = ANY(%(types)s::text[])
  ORDER BY e.scheduled_at DESC LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE {{table}} e SET last_error = left(%(error)s, 2000), updated_at = clock_timestamp()
FROM chosen o WHERE e.id = o.id AND e.created_at = o.created_at
RETURNING e.id::text"""

CLEAR = f"""
-- These types are not paused any more: what waited for that is due
WITH chosen AS MATERIALIZED (
  SELECT e.id, e.created_at FROM {{table}} e
  WHERE {_FREE} AND starts_with(e.last_error, {{paused}}) AND {_WHAT} = ANY(%(types)s::text[])
  FOR UPDATE SKIP LOCKED
)
UPDATE {{table}} e
SET last_error = substr(e.last_error, length({{paused}}) + 1), scheduled_at = least(e.scheduled_at, clock_timestamp())
FROM chosen o WHERE e.id = o.id AND e.created_at = o.created_at
RETURNING e.id::text"""


@dataclass(frozen=True, slots=True)
class GuardStatements:
    marks: str
    waiting: str
    mark: str
    clear: str


@dataclass(frozen=True, slots=True)
class PausedType:
    type: str
    source: str
    since: datetime
    error: str
    waiting: int

    def __str__(self) -> str:
        return (
            f"{self.type} of {self.source} is paused since {self.since.isoformat(' ', 'seconds')}, because its events "
            f"fail alike, and {self.waiting} wait: {self.error}; {REMEDY}"
        )

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"since": self.since.isoformat()}


def what(event_type: str, source: str) -> str:
    """A type of a source, as the statements name it."""
    return f"{source}\n{event_type}"


def beside(key: sql.Composable | None) -> sql.Composed:
    """A condition on what may be claimed while types are paused; with `key`, where order is kept by it."""
    keyed = sql.SQL("false") if key is None else sql.SQL("({key} IS NOT NULL)").format(key=key)
    return sql.SQL(_BESIDE).format(keyed=keyed)


def guard_statements(table: TableName) -> GuardStatements:
    def text(template: str) -> str:
        parts = {
            "table": table.identifier,
            "paused": sql.Literal(PAUSED),
            "still_pending": hide_from_planner(sql.SQL("e.status = 'pending'")),
        }
        return sql.SQL(template).format(**parts).as_string(None).strip()

    return GuardStatements(text(MARKS), text(WAITING), text(MARK), text(CLEAR))


def paused_types(conn: psycopg.Connection[Any], table: TableName, group: str) -> list[PausedType]:
    """Those that workers have paused, as the table shows it."""
    statements = guard_statements(table)

    def rows(statement: str, **more: Sequence[str]) -> list[Any]:
        with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
            return cursor.execute(statement.encode(), {"group": group, **more}).fetchall()

    return [
        PausedType(
            type,
            source,
            since,
            error.removeprefix(PAUSED),
            int(rows(statements.waiting, types=[what(type, source)])[0][0]),
        )
        for type, source, since, error in rows(statements.marks)
    ]
