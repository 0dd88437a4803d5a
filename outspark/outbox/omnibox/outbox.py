"""The outbox of a service on omni-box's table: events are written in its transaction, and the relay sends them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from outspark.contracts.omnibox import enqueue
from outspark.contracts.omnibox.enqueue import Row
from outspark.database.names import TableName
from outspark.errors import TransactionRequired
from outspark.outbox import statements
from outspark.outbox.new_event import Limits
from outspark.outbox.omnibox.new_event import NewOutboxEvent, to_row
from outspark.outbox.statements import Script, Step

if TYPE_CHECKING:
    from outspark.outbox.statements import AsyncHandle, Handle


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer for one event. `id` is that of its row: of the event if it is new, otherwise of the earlier event."""

    id: UUID
    new: bool


class OmniboxOutbox:
    """One outbox table, as a service sees it. It holds no connection; threads and tasks may share it.

    `limits` bounds what an event may be, besides the lengths of the table's columns. The first call finds out whether
    the table is partitioned.
    """

    def __init__(self, table: str = "outbox_events", *, limits: Limits | None = None) -> None:
        self.table = TableName.parse(table)
        self.limits = limits or Limits()
        self._partitioned: bool | None = None
        self._is_partitioned = statements.compose(enqueue.is_partitioned_sql, self.table)
        self._lock = statements.compose(enqueue.lock_sql, self.table)
        self._known = statements.compose(enqueue.known_sql, self.table)
        self._insert = {
            partitioned: statements.compose(enqueue.insert_sql, self.table, partitioned=partitioned)
            for partitioned in (False, True)
        }

    def enqueue(self, conn: Handle, *events: NewOutboxEvent) -> list[Enqueued]:
        """Write events in the transaction of `conn`, and return for each whether it is new, in the given order.

        Takes a psycopg connection or cursor, or a SQLAlchemy Connection or Session. It never commits. On an
        autocommit connection the INSERT is a transaction of its own: it writes all events or none. Idempotency keys
        in a partitioned table need a transaction in READ COMMITTED; without one TransactionRequired is raised.
        """
        return statements.run(conn, "enqueue", self._enqueue(events))

    async def enqueue_async(self, conn: AsyncHandle, *events: NewOutboxEvent) -> list[Enqueued]:
        """`enqueue` for psycopg's async connection or cursor, or SQLAlchemy's async connection or session."""
        return await statements.run_async(conn, "enqueue", self._enqueue(events))

    def _enqueue(self, events: Sequence[NewOutboxEvent]) -> Script[list[Enqueued]]:
        if not events:
            return []
        rows = [to_row(event, self.limits) for event in events]
        fresh = _first_of_each(rows)
        if self._partitioned is None:
            found = yield Step(self._is_partitioned, {})
            # A missing table may be created later, in either form; the INSERT will report that it is missing.
            self._partitioned = found[0][0] if found else None
        keys = [row.idempotency_key for row in fresh if row.idempotency_key is not None]
        if self._partitioned and keys:
            yield from self._lock_keys(keys)
        new = yield Step(self._insert[bool(self._partitioned)], enqueue.insert_params(fresh))
        ids = {UUID(id) for (id,) in new}
        missed = [row.idempotency_key for row in fresh if row.idempotency_key and row.id not in ids]
        known = (yield Step(self._known, {enqueue.KEYS: missed})) if missed else []
        return _answers(rows, ids, {key: UUID(id) for key, id in known})

    def _lock_keys(self, keys: Sequence[str]) -> Script[None]:
        """Only READ COMMITTED gives the INSERT a snapshot that is newer than the wait for the locks."""
        what = f"idempotency keys in the partitioned table {self.table} need"
        locked = yield Step(self._lock, {enqueue.KEYS: keys}, needs=what)
        isolation = locked[0][1]
        if isolation != "read committed":
            raise TransactionRequired(
                f"{what} READ COMMITTED, and the transaction is {isolation.upper()}: it does not see an event that "
                "another transaction wrote while this one waited for it"
            )


def _first_of_each(rows: Sequence[Row]) -> list[Row]:
    """The events that have neither the id nor the idempotency key of an earlier event in the same call."""
    ids: set[UUID] = set()
    keys: set[str] = set()
    first = []
    for row in rows:
        if row.id not in ids and row.idempotency_key not in keys:
            first.append(row)
            ids.add(row.id)
            if row.idempotency_key is not None:
                keys.add(row.idempotency_key)
    return first


def _answers(rows: Sequence[Row], new: set[UUID], known: dict[str, UUID]) -> list[Enqueued]:
    """`known` has the ids of the events that were in the table before this call, by idempotency key."""
    answers = []
    for row in rows:
        is_new = row.id in new
        id = row.id if is_new else known.get(row.idempotency_key or "", row.id)
        answers.append(Enqueued(id, is_new))
        if is_new:
            # A repetition in this call is not new, and its row is this one.
            new = new - {row.id}
            if row.idempotency_key is not None:
                known = {**known, row.idempotency_key: row.id}
    return answers
