"""A worker's place at its database: all that lives as long as its own connection does."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from outspark.contracts.names import TableName, lock_class
from outspark.contracts.omnibox import inbox as contract
from outspark.contracts.omnibox.inbox import (
    WORKER_PREFIX,
    Row,
    WorkStatements,
    resolve_inbox,
    work_statements,
)
from outspark.contracts.omnibox.inbox_guard import GuardStatements, guard_statements
from outspark.inbox.event import InboxEvent, from_row
from outspark.inbox.ordering import KeyOrder
from outspark.relay.connection import Connection, connect
from outspark.settings.inbox import WorkSettings

# Only rows that are being written at this moment are locked, and for no longer than a commit takes.
CONFIGURE = "SET lock_timeout = '5s'"


@dataclass(slots=True)
class Place:
    conn: Connection
    statements: WorkStatements
    guard: GuardStatements
    group: str
    name: str
    alive_class: int
    instance: int
    """Names this session in its locks on rows, and in the lock that shows that it lives."""
    order: KeyOrder | None
    _claims: int = 0

    def token(self) -> str:
        self._claims += 1
        return f"{WORKER_PREFIX}{self.instance}/{self.name}/{self._claims}"

    def rows(self, statement: str, parameters: dict[str, Any]) -> list[Any]:
        return self.conn.execute(statement.encode(), parameters).fetchall()

    def claim(self, statement: str, parameters: dict[str, Any]) -> list[InboxEvent]:
        return [from_row(row) for row in contract.read_claim(self.rows(statement, parameters))]

    def give_back(self, statement: str, parameters: dict[str, Any]) -> list[tuple[InboxEvent, bool]]:
        """Events that came back from others' hands, and whether that was the last straw."""
        return [(from_row(Row(*row[:-1])), row[-1]) for row in self.rows(statement, parameters)]

    def close(self) -> None:
        self.conn.close()


def open_place(url: str, table: TableName, settings: WorkSettings) -> Place:
    conn = connect(url, f"outspark inbox {settings.name}")
    try:
        conn.execute(CONFIGURE)
        return _arrive(conn, resolve_inbox(conn, table), settings)
    except BaseException:
        conn.close()
        raise


def _arrive(conn: Connection, table: TableName, settings: WorkSettings) -> Place:
    ordered = settings.ordering == "key"
    partitioned = conn.execute(contract.PARTITIONED, {"name": table.identifier.as_string(conn)}).fetchone()
    statements = work_statements(
        table,
        settings.slots if ordered else None,
        partitioned=partitioned == (True,),
        most_bytes=settings.batch_bytes,
    )
    alive = lock_class(f"inbox-alive/{settings.group}", table)
    order = KeyOrder(conn, table, settings.group, settings.slots, statements, alive) if ordered else None
    if order is not None:
        order.prepare()
    # Before the first claim, or others would take it for one that somebody left behind.
    instance = _show_alive(conn, alive)
    return Place(
        conn, statements, guard_statements(table), settings.group, settings.name, alive, instance, order
    )


def _show_alive(conn: Connection, alive: int) -> int:
    while True:
        instance = secrets.randbelow(1 << 31)
        row = conn.execute(contract.ALIVE.encode(), {"class": alive, "instance": instance}).fetchone()
        if row is not None and row[0]:
            return instance
