"""What a consumer group has in its inbox, looked up by ids and idempotency keys."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from outspark.contracts.arrays import Texts
from outspark.contracts.names import TableName, lock_class
from outspark.contracts.omnibox.inbox import LOCK_ACCEPT, AcceptStatements
from outspark.errors import TransactionRequired

# Ids and keys share few locks: a batch needs many, and the server has room for only so many.
SHARES = 64


@dataclass(frozen=True, slots=True)
class Ledger:
    conn: psycopg.Connection[Any]
    table: TableName
    group: str
    statements: AcceptStatements

    def known_messages(self, message_ids: Sequence[str]) -> set[str]:
        parameters = {"message_ids": Texts(message_ids), "group": self.group}
        return {row[0] for row in self.rows(self.statements.known_messages, parameters)}

    def open_messages(self, message_ids: Sequence[str]) -> set[str]:
        """Those that are not at their end."""
        parameters = {"message_ids": Texts(message_ids), "group": self.group}
        return {row[0] for row in self.rows(self.statements.open_messages, parameters)}

    def known_keys(self, keys: Sequence[str]) -> set[str]:
        """They carry their group themselves."""
        rows = self.rows(self.statements.known_keys, {"idempotency_keys": Texts(keys)}) if keys else []
        return {row[0] for row in rows}

    def lock(self, names: Iterable[str]) -> None:
        """Until the end of the transaction nobody else takes in messages with these ids and keys."""
        shares = sorted({zlib.crc32(name.encode()) % SHARES for name in names})
        rows = self.rows(LOCK_ACCEPT, {"class": lock_class("accept", self.table), "shares": shares})
        isolation = rows[0][1]
        if isolation != "read committed":
            raise TransactionRequired(
                f"taking messages into the partitioned table {self.table} needs READ COMMITTED, and the transaction "
                f"is {isolation.upper()}: it would not see what others took in while it waited for them"
            )

    def rows(self, statement: str, parameters: dict[str, Any]) -> list[Any]:
        with psycopg.Cursor(self.conn, row_factory=tuple_row) as cursor:
            return cursor.execute(statement.encode(), parameters).fetchall()
