"""The application's side: write events into the outbox, in the transaction that makes them true."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.adapt import PyFormat
from psycopg.rows import tuple_row

from outspark.contracts.openoutbox import enqueue as insert
from outspark.contracts.openoutbox.enqueue import CheckedEvent
from outspark.database.names import TableName
from outspark.errors import SettingsError
from outspark.outbox.new_event import Limits, NewEvent, check

if TYPE_CHECKING:
    import sqlalchemy

    from outspark.outbox.handles import AsyncHandle, Handle

__all__ = ["Limits", "NewEvent", "Outbox", "Statement"]


class Statement(NamedTuple):
    """`cursor.execute(*statement)` with psycopg; it answers the new ids, as text, in the first column."""

    sql: str
    params: dict[str, list[Any]]


class Outbox:
    """One outbox table, as a service sees it. Holds no connection, and may be shared by threads and tasks.

    `limits` bounds what an event may be. `ring` lets `enqueue` ring the doorbell for this many lanes, where a
    trigger is not wanted; the table then needs its schema, because the lanes' locks are named after it.
    """

    def __init__(
        self, table: str = "openoutbox_events", *, limits: Limits | None = None, ring: int = 0
    ) -> None:
        self.table = TableName.parse(table)
        self.limits = limits or Limits()
        if ring and self.table.schema is None:
            raise SettingsError(
                f"ring = {ring} needs the table's schema; write for instance public.{self.table}"
            )
        self._for_psycopg = insert.insert_sql(self.table, _psycopg_placeholder, ring)
        self._for_sqlalchemy = insert.insert_sql(self.table, _sqlalchemy_place, ring)

    def enqueue(self, conn: Handle, *events: NewEvent) -> list[UUID]:
        """Run one INSERT in the transaction of `conn` and answer the ids that are new, in the given order.

        Takes a psycopg connection or cursor, or a SQLAlchemy Connection or Session. It never commits. On an
        autocommit connection the events stand by themselves, all or none. An id that is there already is left
        alone and not answered.
        """
        if not events:
            return []
        checked = self._check(events)
        if isinstance(conn, psycopg.Connection | psycopg.Cursor):
            # A cursor of our own: the caller's may have another row factory, or a result still being read.
            connection = conn if isinstance(conn, psycopg.Connection) else conn.connection
            with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
                cursor.execute(self._for_psycopg, insert.insert_params(checked))
                return _new(checked, cursor)
        if _is_sqlalchemy(conn, is_async=False):
            return _new(checked, conn.execute(*self._sqlalchemy_statement(checked)))
        raise _wrong_handle(
            conn, "enqueue", "a psycopg connection or cursor, or a SQLAlchemy Connection or Session"
        )

    async def enqueue_async(self, conn: AsyncHandle, *events: NewEvent) -> list[UUID]:
        """`enqueue` for psycopg's async connection or cursor, or SQLAlchemy's async connection or session."""
        if not events:
            return []
        checked = self._check(events)
        if isinstance(conn, psycopg.AsyncConnection | psycopg.AsyncCursor):
            connection = conn if isinstance(conn, psycopg.AsyncConnection) else conn.connection
            async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
                await cursor.execute(self._for_psycopg, insert.insert_params(checked))
                return _new(checked, await cursor.fetchall())
        if _is_sqlalchemy(conn, is_async=True):
            return _new(checked, await conn.execute(*self._sqlalchemy_statement(checked)))
        raise _wrong_handle(
            conn,
            "enqueue_async",
            "psycopg's AsyncConnection, or SQLAlchemy's AsyncConnection or AsyncSession",
        )

    def statement(self, *events: NewEvent) -> Statement:
        """The INSERT for a caller who runs it with psycopg: `cursor.execute(*outbox.statement(event))`."""
        return Statement(self._for_psycopg, insert.insert_params(self._check(events)))

    def _check(self, events: Sequence[NewEvent]) -> list[CheckedEvent]:
        return [check(event, self.limits) for event in events]

    def _sqlalchemy_statement(
        self, events: Sequence[CheckedEvent]
    ) -> tuple[sqlalchemy.TextClause, dict[str, Any]]:
        from sqlalchemy import text

        return text(self._for_sqlalchemy), insert.insert_params(events)


def _psycopg_placeholder(name: str) -> sql.Composable:
    # Text format would send every byte of a payload as two.
    return sql.Placeholder(name, format=PyFormat.BINARY if name == "payloads" else PyFormat.AUTO)


def _sqlalchemy_place(name: str) -> sql.Composable:
    return sql.SQL(f":{name}")


def _is_sqlalchemy(conn: object, *, is_async: bool) -> bool:
    if "sqlalchemy" not in sys.modules:
        return False
    if is_async:
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

        return isinstance(conn, AsyncConnection | AsyncSession | async_scoped_session)
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, scoped_session

    return isinstance(conn, Connection | Session | scoped_session)


def _new(events: Sequence[CheckedEvent], rows: Iterable[Any]) -> list[UUID]:
    new = {UUID(row[0]) for row in rows}
    return list(dict.fromkeys(event.id for event in events if event.id in new))


def _wrong_handle(conn: object, call: str, allowed: str) -> TypeError:
    kind = type(conn)
    return TypeError(f"{call} cannot write through {kind.__module__}.{kind.__qualname__}; it takes {allowed}")
