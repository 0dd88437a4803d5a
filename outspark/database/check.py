"""Compares a table with the shape that its contract requires. Each finding has the statement that fixes it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import sql
from psycopg.rows import class_row, tuple_row

from outspark.database.names import TableName
from outspark.database.shape import Column, Index, Shape
from outspark.errors import TableInvalid


@dataclass(frozen=True, slots=True)
class Finding:
    """An error prevents the relay from working; a warning makes it slow or allows invalid rows."""

    level: Literal["error", "warning"]
    problem: str
    remedy: str
    lacks_index: bool = False
    """Without this index, statements would read the whole table."""
    verb: str = "run"
    """How to apply the remedy: `run` a statement, or `set` a setting."""

    def __str__(self) -> str:
        return f"{self.problem}; {self.verb}: {self.remedy}"


def refuse_errors(table: object, findings: Sequence[Finding]) -> None:
    """TableInvalid with every error and its remedy, if there is any error."""
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        lines = "\n".join(f"  {finding.problem}\n    {finding.remedy}" for finding in errors)
        raise TableInvalid(f"table {table} does not fulfil its contract:\n{lines}")


READ_COLUMNS = """\
-- The columns of a table, as PostgreSQL writes them
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type,
       NOT a.attnotnull AS nullable, a.atthasdef AS has_default
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = to_regclass(%(name)s) AND a.attnum > 0 AND NOT a.attisdropped"""

READ_INDEXES = """\
-- What the usable indexes of a table cover: everything after the access method
SELECT substring(pg_get_indexdef(i.indexrelid) FROM ' USING (.*)$'), i.indisunique
FROM pg_catalog.pg_index i
WHERE i.indrelid = to_regclass(%(name)s) AND i.indisvalid"""

READ_CHECKS = """\
-- The CHECK constraints of a table
SELECT pg_get_constraintdef(oid) FROM pg_catalog.pg_constraint
WHERE conrelid = to_regclass(%(name)s) AND contype = 'c'"""

# Types that are close enough to the contract's for every statement of Outspark.
_SIMILAR = {
    "text": re.compile(r"character varying.*"),
    "character varying": re.compile(r"text|character varying.*"),
    "integer": re.compile("bigint|smallint"),
}


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    type: str
    nullable: bool
    has_default: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A table as the database has it."""

    columns: dict[str, _Found]
    indexes: set[tuple[str, bool]]
    """Of each index: the definition after the access method, and whether it is unique."""
    checks: str


def look_up(conn: psycopg.Connection[Any], table: TableName) -> Found:
    """Read the table from the catalog. `table` is resolved."""
    name = {"name": table.identifier.as_string(conn)}
    with psycopg.Cursor(conn, row_factory=class_row(_Found)) as cursor:
        columns = {found.name: found for found in cursor.execute(READ_COLUMNS, name)}
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        indexes = set(cursor.execute(READ_INDEXES, name).fetchall())
        checks = " ".join(row[0] for row in cursor.execute(READ_CHECKS, name))
    return Found(columns, indexes, checks)


def compare(table: TableName, shape: Shape, found: Found) -> list[Finding]:
    """Every difference that matters; none for a table created by the shape's own DDL."""
    return [
        *(
            finding
            for column in shape.columns
            for finding in _column(table, shape, column, found.columns.get(column.name))
        ),
        *_primary_key(table, shape, found.indexes),
        *(finding for index in shape.indexes for finding in _index(table, shape, index, found.indexes)),
    ]


def covers(index: Index, found: Found) -> bool:
    """True when an index with this definition exists, under any name."""
    include = f" INCLUDE ({', '.join(index.include)})" if index.include else ""
    where = f" WHERE {index.printed or f'({index.where})'}" if index.where else ""
    return (f"btree ({', '.join(index.columns)}){include}{where}", index.unique) in found.indexes


def alter(table: TableName, action: str) -> str:
    # `action` consists of the contract's own constants, never of user input.
    return sql.SQL("ALTER TABLE {} ").format(table.identifier).as_string(None) + action + ";"


def _column(table: TableName, shape: Shape, column: Column, found: _Found | None) -> Iterator[Finding]:
    label = f"column {column.name}"
    if found is None:
        add = f"ADD COLUMN {column.name} {shape.declaration(column)}"
        yield Finding("error", f"{label} is missing", alter(table, add))
        return
    if found.type != column.type:
        similar = _SIMILAR.get(column.type.partition("(")[0])
        fits = similar is not None and similar.fullmatch(found.type)
        yield Finding(
            "warning" if fits else "error",
            f"{label} is {found.type}, not {column.type}",
            alter(table, f"ALTER COLUMN {column.name} TYPE {column.type} USING {column.name}::{column.type}"),
        )
    if found.nullable and not column.nullable:
        yield Finding(
            "warning", f"{label} may be NULL", alter(table, f"ALTER COLUMN {column.name} SET NOT NULL")
        )
    if column.default is not None and not found.has_default:
        remedy = alter(table, f"ALTER COLUMN {column.name} SET DEFAULT {column.default}")
        yield Finding("warning", f"{label} has no default", remedy)


def _primary_key(table: TableName, shape: Shape, indexes: set[tuple[str, bool]]) -> Iterator[Finding]:
    key = ", ".join(shape.primary_key)
    if (f"btree ({key})", True) not in indexes:
        remedy = alter(table, f"ADD PRIMARY KEY ({key})")
        yield Finding("error", f"{key} is not unique, so a row could be there twice", remedy)


def _index(table: TableName, shape: Shape, index: Index, indexes: set[tuple[str, bool]]) -> Iterator[Finding]:
    if not covers(index, Found({}, indexes, "")):
        # PostgreSQL cannot create an index on a partitioned table concurrently.
        how = "" if shape.partition_by else "CONCURRENTLY "
        remedy = shape.create_index(table, index, how) + ";"
        problem = f"index {shape.name_index(table, index)} is missing or unusable"
        yield Finding("warning", problem, remedy, lacks_index=True)
