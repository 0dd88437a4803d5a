"""Runs CREATE statements that may find their table there already, and says which of them did."""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.errors import Diagnostic

from outspark.cli import output
from outspark.database.names import TableName

_MADE = re.compile(r"^CREATE (?:UNIQUE )?(TABLE|INDEX|SEQUENCE) IF NOT EXISTS (\S+)", re.MULTILINE)
_EXISTS = "42P07"
"""The code of the notice about what was left alone."""


class Maker:
    """Within one transaction of `conn`."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        self._existed = False
        self._made: list[tuple[str, str, str]] = []
        conn.execute("SET LOCAL client_min_messages = notice")
        conn.add_notice_handler(self._notice)

    def run(self, statement: str) -> None:
        self._existed = False
        self._conn.execute(statement.encode())
        if match := _MADE.search(statement):
            kind, name = match.groups()
            self._made.append((kind.lower(), name, "exists" if self._existed else "created"))

    def tell(self, table: TableName) -> None:
        """All of it is in the schema of `table`."""
        self._conn.remove_notice_handler(self._notice)
        schema = str(TableName("x", table.schema)).rpartition(".")[0]
        for kind, name, what in self._made:
            plain = name.replace('"', "") if re.fullmatch(r'["a-z0-9_.$]+', name) else name
            output.note(f"{kind} {plain if '.' in plain or not schema else f'{schema}.{plain}'} {what}")

    def _notice(self, diagnostic: Diagnostic) -> None:
        self._existed = self._existed or diagnostic.sqlstate == _EXISTS
