"""The outbox of a service on omni-box's table: events are written in its transaction, and the relay sends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from psycopg import sql

from outspark.contracts.omnibox import enqueue as insert
from outspark.contracts.omnibox.enqueue import Row
from outspark.database.names import TableName
from outspark.errors import TransactionRequired
from outspark.outbox.new_event import Limits
from outspark.outbox.omnibox.new_event import NewOutboxEvent, to_row
from outspark.outbox.omnibox.running import Step, Steps, run, run_async

if TYPE_CHECKING:
    from outspark.outbox.handles import AsyncHandle, Handle


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer to one event. `id` is that of the row: its own if it is new, otherwise that of the one before it."""

    id: UUID
    new: bool


class OmniboxOutbox:
    """One outbox table, as a service sees it. Holds no connection, and may be shared by threads and tasks.

    `limits` bounds what an event may be, besides the lengths of the table's columns. Whether the table is partitioned
    is looked up before the first event.
    """

    def __init__(self, table: str = "outbox_events", *, limits: Limits | None = None) -> None:
        self.table = TableName.parse(table)
        self.limits = limits or Limits()
        self._partitioned: bool | None = None
        self._is_partitioned = _compose(lambda place: insert.is_partitioned_sql(self.table))
        self._lock = _compose(partial(insert.lock_sql, self.table))
        self._known = _compose(partial(insert.known_sql, self.table))
        self._insert = {
            split: _compose(partial(insert.insert_sql, self.table, partitioned=split))
            for split in (False, True)
        }

    def enqueue(self, conn: Handle, *events: NewOutboxEvent) -> list[Enqueued]:
        """Write events in the transaction of `conn`, and answer for each whether it is new, in the given order.

        Takes a psycopg connection or cursor, or a SQLAlchemy Connection or Session. It never commits. On an
        autocommit connection the events stand by themselves, all or none. Idempotency keys in a partitioned table need
        a transaction, in READ COMMITTED: TransactionRequired without.
        """
        return run(conn, partial(self._steps, self._rows(events)))

    async def enqueue_async(self, conn: AsyncHandle, *events: NewOutboxEvent) -> list[Enqueued]:
        """`enqueue` for psycopg's async connection or cursor, or SQLAlchemy's async connection or session."""
        return await run_async(conn, partial(self._steps, self._rows(events)))

    def _rows(self, events: Sequence[NewOutboxEvent]) -> list[Row]:
        return [to_row(event, self.limits) for event in events]

    def _refuse_old_snapshot(self, isolation: str) -> None:
        if isolation != "read committed":
            raise TransactionRequired(
                f"idempotency keys in the partitioned table {self.table} need READ COMMITTED, and the transaction is "
                f"{isolation.upper()}: it does not see an event that another wrote while it waited for that"
            )

    def _steps(self, rows: Sequence[Row], in_transaction: bool) -> Steps[list[Enqueued]]:
        if not rows:
            return []
        fresh = _first_of_each(rows)
        keys = [row.idempotency_key for row in fresh if row.idempotency_key is not None]
        if self._partitioned is None:
            found = yield Step(*self._is_partitioned, {})
            # A table that is not there may be made later, in either form; the INSERT will say that it is missing.
            self._partitioned = found[0][0] if found else None
        if self._partitioned and keys:
            if not in_transaction:
                raise TransactionRequired(
                    f"idempotency keys in the partitioned table {self.table} need a transaction, and the connection "
                    "commits each statement by itself; write `with conn.transaction(): …` around it"
                )
            locked = yield Step(*self._lock, {insert.KEYS: keys})
            self._refuse_old_snapshot(locked[0][1])
        new = yield Step(*self._insert[bool(self._partitioned)], insert.insert_params(fresh))
        ids = {UUID(id) for (id,) in new}
        missed = [row.idempotency_key for row in fresh if row.idempotency_key and row.id not in ids]
        known = (yield Step(*self._known, {insert.KEYS: missed})) if missed else []
        return _answers(rows, ids, {key: UUID(id) for key, id in known})


def _first_of_each(rows: Sequence[Row]) -> list[Row]:
    """Without those that have the id or the idempotency key of one before them in the same call."""
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
    """`known` are the events that had their idempotency keys before this call."""
    answers = []
    for row in rows:
        is_new = row.id in new
        id = row.id if is_new else known.get(row.idempotency_key or "", row.id)
        answers.append(Enqueued(id, is_new))
        if is_new:
            # The same again in this call is not new, and the row is this one.
            new = new - {row.id}
            if row.idempotency_key is not None:
                known = {**known, row.idempotency_key: row.id}
    return answers


def _compose(write: Callable[[Callable[[str], sql.Composable]], str]) -> tuple[str, str]:
    """The statement in the words of psycopg, and of SQLAlchemy's `text`."""
    return write(sql.Placeholder), write(_sqlalchemy_place)


def _sqlalchemy_place(name: str) -> sql.Composable:
    return sql.SQL(f":{name}")
