"""Compares the tables of a jEAP outbox with the contract, and says when our optional index would pay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from outspark.contracts.check import Found, alter, compare, covers, look_up
from outspark.contracts.findings import Finding
from outspark.contracts.jeap.table import READY, SHAPE, SHEDLOCK_SHAPE, ready_index, shedlock
from outspark.contracts.names import TableName, resolve

MANY = 100_000
"""Rows from which on a walk over all that was sent is felt."""

ROWS = """\
-- How many rows the planner believes the table to have
SELECT greatest(reltuples, 0)::bigint FROM pg_catalog.pg_class WHERE oid = to_regclass(%(name)s)"""


def check_table(conn: psycopg.Connection[Any], table: TableName) -> list[Finding]:
    """Every difference that matters, errors first; none for tables made by `ddl` while they are small."""
    table = resolve(conn, table)
    found = look_up(conn, table)
    findings = [*compare(table, SHAPE, found), *_lock(conn, table), *_ready(conn, table, found)]
    return sorted(findings, key=lambda finding: finding.level)


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
