"""The application's side of an Open Outbox table: write events in the transaction that makes them true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from outspark.contracts.openoutbox import enqueue
from outspark.database.names import TableName
from outspark.errors import SettingsError
from outspark.outbox import statements
from outspark.outbox.new_event import Limits, NewEvent, check
from outspark.outbox.statements import Script, Step

if TYPE_CHECKING:
    from outspark.outbox.statements import AsyncHandle, Handle

__all__ = ["Limits", "NewEvent", "Outbox", "Statement"]


class Statement(NamedTuple):
    """`cursor.execute(*statement)` with psycopg; it returns the new ids, as text, in the first column."""

    sql: str
    params: dict[str, list[Any]]


class Outbox:
    """One outbox table, as a service sees it. It holds no connection; threads and tasks may share it.

    `limits` bounds what an event may be. `ring` lets `enqueue` wake this many lanes when the table has no trigger
    that does so; the table's name then needs its schema, because the lanes' locks are named after it.
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
        self._insert = statements.compose(enqueue.insert_sql, self.table, ring=ring)

    def enqueue(self, conn: Handle, *events: NewEvent) -> list[UUID]:
        """Run one INSERT in the transaction of `conn` and return the ids that are new, in the given order.

        Takes a psycopg connection or cursor, or a SQLAlchemy Connection or Session. It never commits. On an
        autocommit connection the INSERT is a transaction of its own: it writes all events or none. An event whose
        id is already in the table is not written, and its id is not returned.
        """
        return statements.run(conn, "enqueue", self._enqueue(events))

    async def enqueue_async(self, conn: AsyncHandle, *events: NewEvent) -> list[UUID]:
        """`enqueue` for psycopg's async connection or cursor, or SQLAlchemy's async connection or session."""
        return await statements.run_async(conn, "enqueue", self._enqueue(events))

    def statement(self, *events: NewEvent) -> Statement:
        """The INSERT for a caller who runs it with psycopg: `cursor.execute(*outbox.statement(event))`."""
        return Statement(self._insert.psycopg, self._params(events))

    def _enqueue(self, events: Sequence[NewEvent]) -> Script[list[UUID]]:
        if not events:
            return []
        rows = yield Step(self._insert, self._params(events))
        new = {UUID(row[0]) for row in rows}
        return list(dict.fromkeys(event.id for event in events if event.id in new))

    def _params(self, events: Sequence[NewEvent]) -> dict[str, list[Any]]:
        return enqueue.insert_params([check(event, self.limits) for event in events])
