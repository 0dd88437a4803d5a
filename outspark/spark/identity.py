"""Finds sources or inboxes that are the same table under different URLs or spellings, by asking the database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from outspark.config.settings import twice
from outspark.database.names import TableName
from outspark.errors import SettingsError

# A physical copy of a cluster has the same system identifier, so the server's start time is part of the identity.
IDENTITY = """\
-- Which table of which database of which server this is
SELECT CASE WHEN has_function_privilege('pg_control_system()', 'EXECUTE')
            THEN (SELECT system_identifier FROM pg_control_system()) END,
       pg_postmaster_start_time()::text, (SELECT oid FROM pg_database WHERE datname = current_database()),
       to_regclass(%(name)s)::oid"""


@dataclass(slots=True)
class Identities:
    """The tables claimed so far; a table that is claimed under a second name is refused."""

    kind: str
    _known: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def claim(
        self, conn: psycopg.Connection[Any], name: str, table: TableName, group: str | None = None
    ) -> None:
        """SettingsError when another name has claimed this table already. `table` is resolved."""
        with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
            row = cursor.execute(IDENTITY, {"name": table.identifier.as_string(conn)}).fetchone()
        assert row is not None, "a SELECT without FROM answers one row"
        first = self._known.setdefault((*row, group), name)
        if first != name:
            raise SettingsError(twice(f"{self.kind}.{first}", f"{self.kind}.{name}", str(table), group))
