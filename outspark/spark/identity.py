"""Which table a source or inbox really is, however its URL and name are spelled: the database is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from outspark.config.settings import twice
from outspark.database.names import TableName
from outspark.errors import SettingsError

# A cluster and its copy have the same identifier, so the start of the server belongs to it as well.
IDENTITY = """\
-- Which table of which database of which server this is
SELECT CASE WHEN has_function_privilege('pg_control_system()', 'EXECUTE')
            THEN (SELECT system_identifier FROM pg_control_system()) END,
       pg_postmaster_start_time()::text, (SELECT oid FROM pg_database WHERE datname = current_database()),
       to_regclass(%(name)s)::oid"""


@dataclass(slots=True)
class Identities:
    """The tables that were seen; a second one of another name is refused."""

    kind: str
    _known: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def claim(
        self, conn: psycopg.Connection[Any], name: str, table: TableName, group: str | None = None
    ) -> None:
        """SettingsError when another one is this table already. `table` is resolved."""
        with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
            row = cursor.execute(IDENTITY, {"name": table.identifier.as_string(conn)}).fetchone()
        assert row is not None, "a SELECT without FROM answers one row"
        first = self._known.setdefault((*row, group), name)
        if first != name:
            raise SettingsError(twice(f"{self.kind}.{first}", f"{self.kind}.{name}", str(table), group))
