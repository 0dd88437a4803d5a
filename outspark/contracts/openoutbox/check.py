"""Compares a table that exists with the contract: what stops the relay, and what only makes it slow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row, tuple_row

from outspark.contracts.findings import Finding
from outspark.contracts.names import TableName, resolve
from outspark.contracts.openoutbox.table import (
    COLUMNS,
    INDEXES,
    PRIMARY_KEY,
    STATUS_CHECK,
    STATUS_CONDITION,
    Column,
    Index,
    create_index,
)

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

# Types that hold the same values well enough for every statement of ours.
_SIMILAR = {"text": re.compile(r"character varying.*"), "integer": re.compile("bigint|smallint")}


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    type: str
    nullable: bool
    has_default: bool


def check_table(conn: psycopg.Connection[Any], table: TableName) -> list[Finding]:
    """Every difference that matters, errors first; none for a table made by `ddl`."""
    table = resolve(conn, table)
    name = {"name": table.identifier.as_string(conn)}
    with psycopg.Cursor(conn, row_factory=class_row(_Found)) as cursor:
        columns = {found.name: found for found in cursor.execute(READ_COLUMNS, name)}
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        indexes = set(cursor.execute(READ_INDEXES, name).fetchall())
        checks = " ".join(row[0] for row in cursor.execute(READ_CHECKS, name))
    findings = [
        *(
            finding
            for column in COLUMNS
            for finding in _check_column(table, column, columns.get(column.name))
        ),
        *_check_primary_key(table, indexes),
        *_check_status(table, checks),
        *(finding for index in INDEXES for finding in _check_index(table, index, indexes)),
    ]
    return sorted(findings, key=lambda finding: finding.level)


def _check_column(table: TableName, column: Column, found: _Found | None) -> Iterator[Finding]:
    label = f"column {column.name}"
    if found is None:
        yield Finding(
            "error", f"{label} is missing", _alter(table, f"ADD COLUMN {column.name} {column.declaration}")
        )
        return
    if found.type != column.type:
        similar = _SIMILAR.get(column.type)
        fits = similar is not None and similar.fullmatch(found.type)
        yield Finding(
            "warning" if fits else "error",
            f"{label} is {found.type}, not {column.type}",
            _alter(
                table, f"ALTER COLUMN {column.name} TYPE {column.type} USING {column.name}::{column.type}"
            ),
        )
    if found.nullable and not column.nullable:
        yield Finding(
            "warning", f"{label} may be NULL", _alter(table, f"ALTER COLUMN {column.name} SET NOT NULL")
        )
    if column.default is not None and not found.has_default:
        remedy = _alter(table, f"ALTER COLUMN {column.name} SET DEFAULT {column.default}")
        yield Finding("warning", f"{label} has no default", remedy)


def _check_primary_key(table: TableName, indexes: set[tuple[str, bool]]) -> Iterator[Finding]:
    if (f"btree ({PRIMARY_KEY})", True) not in indexes:
        remedy = _alter(table, f"ADD PRIMARY KEY ({PRIMARY_KEY})")
        yield Finding("error", f"{PRIMARY_KEY} is not unique, so an event could be there twice", remedy)


def _check_status(table: TableName, checks: str) -> Iterator[Finding]:
    if not all(f"'{status}'" in checks for status in ("PENDING", "DELIVERING", "DELIVERED", "DEAD")):
        remedy = _alter(table, f"ADD CONSTRAINT {STATUS_CHECK} CHECK ({STATUS_CONDITION})")
        yield Finding("warning", "no CHECK keeps status to the four states", remedy)


def _check_index(table: TableName, index: Index, indexes: set[tuple[str, bool]]) -> Iterator[Finding]:
    """An index of another name that covers the same does as well."""
    include = f" INCLUDE ({', '.join(index.include)})" if index.include else ""
    covers = f"btree ({', '.join(index.columns)}){include} WHERE (status = '{index.status}'::text)"
    if (covers, False) not in indexes:
        remedy = create_index(table, index, "CONCURRENTLY ") + ";"
        yield Finding(
            "warning", f"index {index.name(table)} is missing or unusable", remedy, lacks_index=True
        )


def _alter(table: TableName, action: str) -> str:
    # `action` is made of the contract's own constants, never of anything from outside.
    return sql.SQL("ALTER TABLE {} ").format(table.identifier).as_string(None) + action + ";"
