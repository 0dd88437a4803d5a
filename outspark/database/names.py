"""Names of tables, validated and quoted, and all names and numbers that are derived from them."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from outspark.errors import SettingsError, TableInvalid

MAX_BYTES = 63
"""PostgreSQL truncates longer identifiers without an error, so Outspark refuses them."""

_PLAIN = r"[A-Za-z_][A-Za-z0-9_$]*"
# No quote, percent, colon or backslash: every driver would need another way to escape such a name.
_QUOTED = r'"[\w$ .\-]+"'
_NAME = re.compile(rf"(?:(?P<schema>{_PLAIN}|{_QUOTED})\.)?(?P<table>{_PLAIN}|{_QUOTED})")

MADE_MEANWHILE = (
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateObject,
    psycopg.errors.UniqueViolation,
)
"""Errors of CREATE TABLE when another session creates the same table concurrently, even with IF NOT EXISTS."""

FIND_TABLE = """\
-- Schema and name of a table as this connection's search path resolves it
SELECT n.nspname, c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(%(name)s) AND c.relkind IN ('r', 'p')"""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table name, with its schema when that is known. Create it with `parse`, which validates it."""

    table: str
    schema: str | None = None

    @classmethod
    def parse(cls, text: str) -> TableName:
        """`outbox`, `sales.outbox` or `"Sales"."Order Events"`; unquoted parts fold to lower case."""
        match = _NAME.fullmatch(text.strip())
        if match is None:
            raise SettingsError(
                f"table = {text!r} is not a table name; write table or schema.table in letters, digits, _ "
                'and $, or "quoted" when it has other letters, spaces, dots or dashes'
            )
        schema = match["schema"]
        return cls(_part(match["table"], text), None if schema is None else _part(schema, text))

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.table) if self.schema is None else sql.Identifier(self.schema, self.table)

    def within(self, schema: str) -> TableName:
        """The same table in `schema`, unless it has a schema already."""
        return self if self.schema is not None else TableName(self.table, schema)

    def sibling(self, suffix: str, prefix: str = "") -> TableName:
        """`<prefix><table>_<suffix>` in the same schema; a name that is too long is shortened and gets a hash.

        `orders` gives `orders_doorbell`; sixty `x` give 45 `x`, then `_84566879_doorbell`.
        """
        name = f"{prefix}{self.table}_{suffix}"
        if len(name.encode()) > MAX_BYTES:
            tail = f"_{zlib.crc32(self.table.encode()):08x}_{suffix}"
            room = MAX_BYTES - len(prefix) - len(tail)
            name = prefix + self.table.encode()[:room].decode(errors="ignore") + tail
        return TableName(name, self.schema)

    def __str__(self) -> str:
        return ".".join(_text(part) for part in (self.schema, self.table) if part is not None)


def resolve(conn: psycopg.Connection[Any], table: TableName, init: str = "outspark init") -> TableName:
    """The table with its schema as this connection sees it, so that every spelling gives the same lock keys.

    `init` is the command that creates such a table, for the error when there is none.
    """
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        row = cursor.execute(FIND_TABLE, {"name": table.identifier.as_string(conn)}).fetchone()
    if row is None:
        raise TableInvalid(f"there is no table {table} in this database; run: {init} --table {table} --apply")
    schema, name = row
    return TableName(name, schema)


def lock_class(purpose: str, table: TableName) -> int:
    """First key of a table's advisory locks: a signed 32-bit number, the same in all processes."""
    if table.schema is None:
        raise ValueError(
            f"table {table} has no schema: resolve it first, because its lock keys must not depend on the spelling"
        )
    unsigned = zlib.crc32(f"outspark/{purpose}/{table}".encode())
    return unsigned - (1 << 32) if unsigned >= 1 << 31 else unsigned


def bell_channel(table: TableName) -> str:
    """The NOTIFY channel that wakes the lanes of this table."""
    return f"outspark_bell_{lock_class('bell', table) & 0xFFFFFFFF:08x}"


def _part(text: str, whole: str) -> str:
    name = text[1:-1] if text.startswith('"') else text.lower()
    if len(name.encode()) > MAX_BYTES:
        raise SettingsError(
            f"table = {whole!r}: {name!r} has {len(name.encode())} bytes, allowed: {MAX_BYTES}"
        )
    return name


def _text(part: str) -> str:
    return part if re.fullmatch(_PLAIN, part) and part == part.lower() else f'"{part}"'
