"""The stored headers of jEAP messages: a table beside the outbox that only some services have, and its statements."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from outspark.contracts.jeap.table import header_table
from outspark.database.names import TableName

LOOK = """\
-- Is there a table of headers, and does the database delete them together with their message?
SELECT to_regclass(%(headers)s) IS NOT NULL AS are_stored, EXISTS (
  SELECT FROM pg_catalog.pg_constraint
  WHERE conrelid = to_regclass(%(headers)s) AND confrelid = to_regclass(%(table)s)
    AND contype = 'f' AND confdeltype = 'c') AS go_along"""

# One column for all headers of message e: of each the length and the name, the length and the value, -1 for null.
PACKED = """(
  SELECT string_agg(
    int4send(octet_length(n.name)) || n.name ||
    int4send(coalesce(octet_length(h.header_value), -1)) || coalesce(h.header_value, ''),
    '' ORDER BY h.header_index)
  FROM {headers} h CROSS JOIN LATERAL (SELECT convert_to(h.header_name, 'UTF8')) AS n(name)
  WHERE h.deferred_message_id = e.id)"""

SIZE = """coalesce((
    SELECT sum(octet_length(h.header_name) + coalesce(octet_length(h.header_value), 0)) FROM {headers} h
    WHERE h.deferred_message_id = e.id), 0)"""
"""The bytes of all headers of message e."""

STILL_NONE = "(SELECT to_regclass({name})) IS NULL"
"""A service may make the table at any time: from then on, statements that do not read it must find no message."""

# A part of a statement that has chosen its messages.
DELETE = """, headers AS (
  DELETE FROM {headers} h WHERE h.deferred_message_id = ANY(ARRAY(SELECT id FROM chosen))
)"""

_LENGTH = Struct("!i")
_NULL = -1


@dataclass(frozen=True, slots=True)
class Layout:
    are_stored: bool
    go_along: bool


def look_at(conn: psycopg.Connection[Any], table: TableName) -> Layout:
    names = {"headers": header_table(table), "table": table}
    with psycopg.Cursor(conn, row_factory=class_row(Layout)) as cursor:
        parameters = {what: name.identifier.as_string(conn) for what, name in names.items()}
        layout = cursor.execute(LOOK, parameters).fetchone()
    assert layout is not None, "a SELECT without FROM always answers one row"
    return layout


def packed(table: TableName) -> sql.Composed:
    return sql.SQL(PACKED).format(headers=header_table(table).identifier)


def size(table: TableName) -> sql.Composed:
    return sql.SQL(SIZE).format(headers=header_table(table).identifier)


def still_none(table: TableName) -> sql.Composed:
    return sql.SQL(STILL_NONE).format(name=sql.Literal(header_table(table).identifier.as_string(None)))


def deletion(conn: psycopg.Connection[Any], table: TableName) -> sql.Composable:
    """What a statement needs besides, where the headers of its messages would stay or forbid it."""
    layout = look_at(conn, table)
    if not layout.are_stored or layout.go_along:
        return sql.SQL("")
    return sql.SQL(DELETE).format(headers=header_table(table).identifier)


def unpack(column: bytes) -> list[tuple[str, bytes | None]]:
    """`00000001 61 00000002 6869` is the header `a` with the value `hi`."""
    found: list[tuple[str, bytes | None]] = []
    at = 0
    while at < len(column):
        name, at = _take(column, at)
        value, at = _take(column, at)
        assert name is not None, "names are never null"
        found.append((name.decode(errors="surrogateescape"), value))
    return found


def _take(column: bytes, at: int) -> tuple[bytes | None, int]:
    (length,) = _LENGTH.unpack_from(column, at)
    start = at + _LENGTH.size
    return (None, start) if length == _NULL else (column[start : start + length], start + length)
