"""Compares an omni-box table with the contract, and says when our optional index would pay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from outspark.contracts.check import Found, alter, compare, covers, look_up
from outspark.contracts.findings import Finding
from outspark.contracts.names import TableName, resolve
from outspark.contracts.omnibox.table import CHECKS, READY, kind, ready_index
from outspark.contracts.shape import Shape

MANY = 100_000
"""Rows from which on it is felt that no index holds what is not completed, in order."""

# Of each CHECK, words that PostgreSQL writes for it in whatever form it was given.
_WORDS = {
    "attempts_valid": "attempts_made <= max_attempts",
    "completed_status_consistency": "completed_at IS NOT NULL",
    "lock_consistency": "locked_by IS NOT NULL",
}

# A table that neither has partitions nor is one has no tree.
LAYOUT = """\
-- Is the table partitioned, how many partitions and, as the planner believes, rows has it; and which month is it?
SELECT c.relkind = 'p' AS partitioned, count(r.oid) AS partitions,
       coalesce(sum(greatest(r.reltuples, 0)), 0)::bigint AS rows,
       date_trunc('month', now() AT TIME ZONE 'UTC')::date AS month,
       (date_trunc('month', now() AT TIME ZONE 'UTC') + interval '1 month')::date AS next_month
FROM pg_catalog.pg_class c
LEFT JOIN LATERAL (
  SELECT relid FROM pg_partition_tree(c.oid) UNION SELECT c.oid
) l ON true
LEFT JOIN pg_catalog.pg_class r ON r.oid = l.relid AND r.relkind <> 'p'
WHERE c.oid = to_regclass(%(name)s)
GROUP BY c.relkind"""

CREATE_PARTITION = "CREATE TABLE {partition} PARTITION OF {table} FOR VALUES FROM ({begin}) TO ({end});"


@dataclass(frozen=True, slots=True)
class Layout:
    """What statements and advice depend on; by default a table as omni-box makes it."""

    partitioned: bool = False
    partitions: int = 1
    rows: int = 0
    month: date = date.min
    next_month: date = date.max
    has_ready_index: bool = False


def look_at(conn: psycopg.Connection[Any], table: TableName, found: Found | None = None) -> Layout:
    """`table` is resolved."""
    with psycopg.Cursor(conn, row_factory=class_row(Layout)) as cursor:
        layout = cursor.execute(LAYOUT, {"name": table.identifier.as_string(conn)}).fetchone()
    assert layout is not None, "a resolved table is in the catalog"
    return replace(layout, has_ready_index=covers(READY, found or look_up(conn, table)))


def check_table(conn: psycopg.Connection[Any], table: TableName, *, inbox: bool = False) -> list[Finding]:
    """Every difference that matters, errors first; none for a table made by `ddl`, with partitions, while it is small.

    Whether it is partitioned is seen from the table itself.
    """
    table = resolve(conn, table)
    found = look_up(conn, table)
    layout = look_at(conn, table, found)
    shape = kind(inbox=inbox, partitioned=layout.partitioned).shape
    findings = [
        *map(_graded, compare(table, shape, found)),
        *_checks(table, shape, found.checks),
        *_partitions(table, layout),
        *_ready(table, layout),
    ]
    return sorted(findings, key=lambda finding: finding.level)


def _graded(finding: Finding) -> Finding:
    """Without the index that finds duplicates, messages would be handled twice."""
    vital = finding.lacks_index and "deduplication" in finding.problem
    return replace(finding, level="error") if vital else finding


def _checks(table: TableName, shape: Shape, checks: str) -> Iterator[Finding]:
    for name, condition in CHECKS:
        if _WORDS[name] not in checks:
            clause = shape.check_clause(table, name, condition).as_string(None)
            yield Finding("warning", f"no CHECK holds that {condition}", alter(table, f"ADD {clause}"))


def _partitions(table: TableName, layout: Layout) -> Iterator[Finding]:
    if layout.partitioned and not layout.partitions:
        partition = table.sibling(f"p{layout.month:%Y_%m}").identifier
        begin, end = (sql.Literal(f"{day:%Y-%m-%d} 00:00+00") for day in (layout.month, layout.next_month))
        remedy = sql.SQL(CREATE_PARTITION).format(
            partition=partition, table=table.identifier, begin=begin, end=end
        )
        yield Finding("warning", "it has no partitions, so nothing can be written", remedy.as_string(None))


def _ready(table: TableName, layout: Layout) -> Iterator[Finding]:
    if layout.rows >= MANY and not layout.has_ready_index:
        how = "IF NOT EXISTS " if layout.partitioned else "CONCURRENTLY IF NOT EXISTS "
        yield Finding(
            "warning",
            "looks for what is dead or oldest read much that is completed; an index of ours spares that",
            ready_index(table, how) + ";",
        )
