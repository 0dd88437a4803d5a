"""Everything PostgreSQL's catalog knows about a table, in a form that two tables can be compared by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

COLUMNS = """
SELECT a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,
       a.attcollation::regcollation::text, a.attstorage, pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""

CONSTRAINTS = """
SELECT conname, contype, condeferrable, convalidated, pg_get_constraintdef(oid)
FROM pg_constraint WHERE conrelid = %s::regclass ORDER BY conname"""

INDEXES = """
SELECT c.relname, c.relnamespace::regnamespace::text, i.indisunique, i.indisvalid, pg_get_indexdef(c.oid)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = %s::regclass ORDER BY c.relname"""

PARTITIONING = """
SELECT c.relkind, pg_get_partkeydef(c.oid) FROM pg_class c WHERE c.oid = %s::regclass"""


@dataclass(frozen=True)
class Catalog:
    columns: list[tuple[Any, ...]]
    constraints: list[tuple[Any, ...]]
    indexes: list[tuple[Any, ...]]
    partitioning: list[tuple[Any, ...]]

    def nameless(self) -> tuple[object, ...]:
        """All but the names of the table's constraints and indexes."""
        constraints = sorted(row[4] for row in self.constraints)
        indexes = sorted((row[2], row[4].split(" USING ")[1]) for row in self.indexes)
        return self.columns, constraints, indexes, self.partitioning


def catalog(conn: psycopg.Connection, table: str) -> Catalog:
    queries = (COLUMNS, CONSTRAINTS, INDEXES, PARTITIONING)
    return Catalog(*(conn.execute(query, [table]).fetchall() for query in queries))
