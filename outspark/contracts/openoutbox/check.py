"""Compares a table that exists with the contract: its shape, and the CHECK on the four states."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import psycopg

from outspark.contracts.check import alter, compare, look_up
from outspark.contracts.findings import Finding
from outspark.contracts.names import TableName, resolve
from outspark.contracts.openoutbox.table import SHAPE, STATUS_CHECK, STATUS_CONDITION


def check_table(
    conn: psycopg.Connection[Any], table: TableName, ignore: Collection[str] = ()
) -> list[Finding]:
    """Every difference that matters, errors first; none for a table made by `ddl`."""
    table = resolve(conn, table)
    found = look_up(conn, table)
    findings = [*compare(table, SHAPE, found), *_check_status(table, found.checks)]
    return sorted(findings, key=lambda finding: finding.level)


def _check_status(table: TableName, checks: str) -> Iterator[Finding]:
    if not all(f"'{status}'" in checks for status in ("PENDING", "DELIVERING", "DELIVERED", "DEAD")):
        remedy = alter(table, f"ADD CONSTRAINT {STATUS_CHECK} CHECK ({STATUS_CONDITION})")
        yield Finding("warning", "no CHECK keeps status to the four states", remedy)
