"""Partitions of a table that is split by RANGE over one time column, and the statements to create and drop them.

Whether a partition's events are all final is for the contract to say, in `PartitionSql`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import class_row, tuple_row

from outspark.database.names import TableName
from outspark.errors import TableInvalid

FIRST: Final = datetime.min.replace(tzinfo=UTC)
LAST: Final = datetime.max.replace(tzinfo=UTC)

# PostgreSQL prints the bounds in the session's time zone, and the casts read them in the same.
READ = """\
-- The partitions of a table with their bounds
SELECT n.nspname AS schema, c.relname AS name, b.bound = 'DEFAULT' AS is_default,
       CASE WHEN isfinite(b.first) THEN b.first END AS first, CASE WHEN isfinite(b.last) THEN b.last END AS last
FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (SELECT pg_get_expr(c.relpartbound, c.oid) AS bound) p
CROSS JOIN LATERAL (SELECT p.bound,
                           substring(p.bound FROM $$FROM \\('([^']+)'\\)$$)::timestamptz AS first,
                           substring(p.bound FROM $$TO \\('([^']+)'\\)$$)::timestamptz AS last) b
WHERE i.inhparent = to_regclass(%(name)s) AND c.relpartbound IS NOT NULL
ORDER BY first NULLS FIRST"""

# From the catalog alone: pg_get_partkeydef would wait for a session that holds the table.
SPLIT = """\
-- Is a table split by RANGE over created_at alone? No row when it is not split at all
SELECT p.partstrat = 'r' AND p.partnatts = 1 AND a.attname IS NOT DISTINCT FROM 'created_at'
FROM pg_catalog.pg_partitioned_table p
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
WHERE p.partrelid = to_regclass(%(name)s)"""

SIZES = """\
-- Size of each partition: rows as the planner estimates, and bytes with indexes
SELECT c.relname, nullif(greatest(c.reltuples, -1), -1)::bigint, pg_total_relation_size(c.oid)
FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass(%(name)s)"""

NOW = "SELECT clock_timestamp()"

BEGINNINGS = """\
-- Where the current partition and the next ones begin, in UTC
SELECT date_trunc(%(every)s, clock_timestamp(), 'UTC') AT TIME ZONE 'UTC' + n * %(step)s::interval
FROM generate_series(0, %(ahead)s::int + 1) AS n"""

# Attaching an empty table blocks neither readers nor writers; CREATE TABLE … PARTITION OF would block both.
CREATE = """\
-- Create a table like the parent; ATTACH then creates its indexes
CREATE TABLE {partition} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE
  INCLUDING GENERATED INCLUDING COMPRESSION)"""

ATTACH = """\
-- Make it the partition of this time range
ALTER TABLE {table} ATTACH PARTITION {partition} FOR VALUES FROM ({first}) TO ({last})"""

DETACH = """\
-- Detach a partition from its table
ALTER TABLE {table} DETACH PARTITION {partition}"""

DROP = """\
-- Drop a detached partition with its events
DROP TABLE {partition}"""

LOCK_TIMEOUT = """\
-- Limit each wait for a lock: sessions behind this one in the lock queue wait as well
SELECT set_config('lock_timeout', %(milliseconds)s::text, true)"""


@dataclass(frozen=True, slots=True)
class PartitionSql:
    """What a contract says of `{partition}`: each answers one boolean, with the parameter `before`."""

    finished: str
    """Is every event in it final, and was so before that time? May read all of it."""
    still_finished: str
    """Has nothing changed since then? Every writer waits meanwhile, so it may use indexes only."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of the range from `first` to before `last`; None means unbounded."""

    schema: str
    name: str
    is_default: bool
    first: datetime | None
    last: datetime | None

    @property
    def table(self) -> TableName:
        return TableName(self.name, self.schema)


@dataclass(frozen=True, slots=True)
class Layout:
    """The partitions of a table, ordered by their bounds."""

    partitions: tuple[Partition, ...]
    now: datetime

    def has_place_for(self, at: datetime) -> bool:
        if any(partition.is_default for partition in self.partitions):
            return True
        ranges = self.ranges()
        index = bisect_right(ranges, (at, LAST)) - 1
        return index >= 0 and ranges[index][0] <= at < ranges[index][1]

    def ranges(self) -> list[tuple[datetime, datetime]]:
        return sorted((p.first or FIRST, p.last or LAST) for p in self.partitions if not p.is_default)

    def span(self) -> str:
        """The time range that the partitions cover, for messages."""
        ranges = self.ranges()
        return f"{ranges[0][0].isoformat()} to {ranges[-1][1].isoformat()}" if ranges else "none"


@dataclass(frozen=True, slots=True)
class Size:
    rows: int | None
    """The planner's estimate; None before the first ANALYZE."""
    bytes: int


def require_split(conn: psycopg.Connection[Any], table: TableName) -> None:
    """TableInvalid unless the table is split by RANGE over `created_at`."""
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        row = cursor.execute(SPLIT, {"name": table.identifier.as_string(conn)}).fetchone()
    if row is None:
        raise TableInvalid(
            f"table {table} is not partitioned, so it has no partitions to keep: `outspark prune` keeps it small, and "
            "`outspark init --contract omnibox --partitioned` prints a table that is (with --inbox, an inbox)"
        )
    if not row[0]:
        raise TableInvalid(
            f"table {table} is not partitioned by RANGE (created_at), and only that can be kept"
        )


def sizes(conn: psycopg.Connection[Any], table: TableName) -> dict[str, Size]:
    """Partition name -> size."""
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        rows = cursor.execute(SIZES, {"name": table.identifier.as_string(conn)}).fetchall()
    return {name: Size(*size) for name, *size in rows}


def read(conn: psycopg.Connection[Any], table: TableName) -> Layout:
    name = {"name": table.identifier.as_string(conn)}
    with psycopg.Cursor(conn, row_factory=class_row(Partition)) as cursor:
        partitions = cursor.execute(READ.encode(), name).fetchall()
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        row = cursor.execute(NOW).fetchone()
    assert row is not None
    return Layout(tuple(partitions), row[0])


def compose(template: str, table: TableName, partition: TableName, **parts: sql.Composable) -> sql.Composed:
    return sql.SQL(template).format(table=table.identifier, partition=partition.identifier, **parts)
