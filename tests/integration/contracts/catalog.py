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


@dataclass(frozen=True)
class Catalog:
    columns: list[tuple[Any, ...]]
    constraints: list[tuple[Any, ...]]
    indexes: list[tuple[Any, ...]]


def catalog(conn: psycopg.Connection, table: str) -> Catalog:
    return Catalog(*(conn.execute(query, [table]).fetchall() for query in (COLUMNS, CONSTRAINTS, INDEXES)))
