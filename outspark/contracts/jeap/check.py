"""Compares the tables of a jEAP outbox with the contract, and says when our optional index would pay."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from outspark.contracts.check import Found, alter, compare, covers, look_up
from outspark.contracts.findings import Finding
from outspark.contracts.jeap.table import (
    HEADER_SHAPE,
    READY,
    SHAPE,
    SHEDLOCK_SHAPE,
    header_table,
    ready_index,
    shedlock,
)
from outspark.contracts.names import TableName, resolve

MANY = 100_000
"""Rows from which on a walk over all that was sent is felt."""

ROWS = """\
-- How many rows the planner believes the table to have
SELECT greatest(reltuples, 0)::bigint FROM pg_catalog.pg_class WHERE oid = to_regclass(%(name)s)"""

REFERRING = """\
-- The tables that refer to a table by a foreign key
SELECT DISTINCT n.nspname, c.relname
FROM pg_catalog.pg_constraint f
JOIN pg_catalog.pg_class c ON c.oid = f.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE f.confrelid = to_regclass(%(name)s) AND f.contype = 'f' AND f.conparentid = 0 AND f.conrelid <> f.confrelid
ORDER BY 1, 2"""


def check_table(
    conn: psycopg.Connection[Any], table: TableName, ignore: Collection[str] = ()
) -> list[Finding]:
    """Every difference that matters, errors first; none for tables made by `ddl` while they are small.

    `ignore` names columns and side tables of the service's own that say nothing about how a message is sent.
    """
    table = resolve(conn, table)
    found, headers = look_up(conn, table), look_up(conn, header_table(table))
    findings = [
        *compare(table, SHAPE, found),
        *_headers(table, headers),
        *_unknown([*_unknown_columns(table, found, headers), *_unknown_tables(conn, table)], ignore),
        *_lock(conn, table),
        *_ready(conn, table, found),
    ]
    return sorted(findings, key=lambda finding: finding.level)


def _headers(table: TableName, found: Found) -> Iterator[Finding]:
    header = header_table(table)
    for finding in compare(header, HEADER_SHAPE, found) if found.columns else ():
        yield replace(finding, problem=f"table {header}: {finding.problem}")


def _unknown(names: list[str], ignore: Collection[str]) -> Iterator[Finding]:
    """One finding for all of them, so that its remedy is the whole setting."""
    if unknown := [name for name in names if name not in ignore]:
        problem = (
            f"unknown to this contract: {', '.join(unknown)}; what they say about sending would be lost, so stay with "
            "the service's own relay, or, if they say nothing about it, name them in the settings of the source"
        )
        setting = f"jeap.ignore = {json.dumps([*ignore, *unknown], ensure_ascii=False)}"
        yield Finding("error", problem, setting, verb="set")


def _unknown_columns(table: TableName, found: Found, headers: Found) -> Iterator[str]:
    """`tenant`, and `deferred_message_header.tenant`."""
    yield from sorted(found.columns.keys() - {column.name for column in SHAPE.columns})
    for name in sorted(headers.columns.keys() - {column.name for column in HEADER_SHAPE.columns}):
        yield f"{header_table(table).table}.{name}"


def _unknown_tables(conn: psycopg.Connection[Any], table: TableName) -> Iterator[str]:
    """`audit`, and `other.audit` where it is in another schema."""
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        rows = cursor.execute(REFERRING, {"name": table.identifier.as_string(conn)}).fetchall()
    for schema, name in rows:
        if (side := TableName(name, schema)) != header_table(table):
            yield name if schema == table.schema else str(side)


def _lock(conn: psycopg.Connection[Any], table: TableName) -> Iterator[Finding]:
    lock = shedlock(table)
    found = look_up(conn, lock)
    if not found.columns:
        remedy = SHEDLOCK_SHAPE.create_table(lock) + ";"
        yield Finding("error", f"table {lock} is missing: nothing would keep two relays apart", remedy)
        return
    # A wider name or a coarser time is the service's own business: ShedLock works with them, and so do we.
    for column in SHEDLOCK_SHAPE.columns:
        if column.name not in found.columns:
            remedy = SHEDLOCK_SHAPE.create_table(lock) + ";"
            yield Finding("error", f"table {lock} has no column {column.name}: it is not ShedLock's", remedy)
        elif found.columns[column.name].type.endswith("with time zone"):
            # ShedLock writes times without a zone, and PostgreSQL takes them for those of the session's zone.
            problem = (
                f"column {column.name} of {lock} has a time zone: relays see each other's lock only in UTC"
            )
            change = f"ALTER COLUMN {column.name} TYPE timestamp USING {column.name} AT TIME ZONE 'UTC'"
            yield Finding("warning", problem, alter(lock, change))


def _ready(conn: psycopg.Connection[Any], table: TableName, found: Found) -> Iterator[Finding]:
    if covers(READY, found):
        return
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        row = cursor.execute(ROWS, {"name": table.identifier.as_string(conn)}).fetchone()
    if row is not None and row[0] >= MANY:
        yield Finding(
            "warning",
            "every look for messages walks over all that were sent; an index of ours spares that",
            ready_index(table, "CONCURRENTLY IF NOT EXISTS ") + ";",
        )
