"""psycopg's side: a transaction that sends what was put into it as soon as it is committed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from outspark.errors import TransactionRequired
from outspark.outbox.jeap.new_message import NewMessage
from outspark.outbox.jeap.pending import Pending, note
from outspark.outbox.jeap.sender import TxStatus
from outspark.outbox.jeap.statements import Step
from outspark.outbox.jeap.writer import Writer

log = logging.getLogger(__name__)

AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

_LEFT = "messages could not be sent and marked at once; they are left to the relay"


class Transaction:
    """Of one outbox, on one connection: `outbox.transaction(conn)` makes it."""

    def __init__(self, writer: Writer, conn: psycopg.Connection[Any], pending: Pending) -> None:
        self._writer, self._conn, self._pending = writer, conn, pending

    def send(self, *messages: NewMessage) -> list[int]:
        """To be sent as soon as the transaction is committed; answers the ids of the rows."""
        return self._post(messages, immediate=True)

    def send_scheduled(self, *messages: NewMessage) -> list[int]:
        """To be sent by the relay; answers the ids of the rows."""
        return self._post(messages, immediate=False)

    def _post(self, messages: tuple[NewMessage, ...], *, immediate: bool) -> list[int]:
        prepared = self._writer.write(messages, immediate=immediate)
        events = prepared.events(execute(self._conn, prepared.step))
        self._pending.add(self._writer.sender, events, immediate=immediate)
        return [int(event.id) for event in events]


class AsyncTransaction:
    """`Transaction` on psycopg's async connection."""

    def __init__(self, writer: Writer, conn: psycopg.AsyncConnection[Any], pending: Pending) -> None:
        self._writer, self._conn, self._pending = writer, conn, pending

    async def send(self, *messages: NewMessage) -> list[int]:
        return await self._post(messages, immediate=True)

    async def send_scheduled(self, *messages: NewMessage) -> list[int]:
        return await self._post(messages, immediate=False)

    async def _post(self, messages: tuple[NewMessage, ...], *, immediate: bool) -> list[int]:
        prepared = self._writer.write(messages, immediate=immediate)
        events = prepared.events(await execute_async(self._conn, prepared.step))
        self._pending.add(self._writer.sender, events, immediate=immediate)
        return [int(event.id) for event in events]


@contextmanager
def transaction(writer: Writer, conn: psycopg.Connection[Any]) -> Iterator[Transaction]:
    _require_idle(conn)
    pending = Pending()
    status: TxStatus = "rolled_back"
    try:
        with conn.transaction():
            yield Transaction(writer, conn, pending)
            for writes, step in pending.holds():
                writes.keep(_ids(execute(conn, step)))
            status = _before_commit(conn)
        status = _after_commit(conn, status)
    except BaseException:
        status = _after_error(conn, status)
        raise
    finally:
        pending.count(status)
    if status == "committed" and pending.holds_any:
        try:
            for step in pending.deliver():
                with conn.transaction():
                    note(step, _ids(execute(conn, step)))
        except Exception:
            log.exception(_LEFT)


@asynccontextmanager
async def transaction_async(
    writer: Writer, conn: psycopg.AsyncConnection[Any]
) -> AsyncIterator[AsyncTransaction]:
    _require_idle(conn)
    pending = Pending()
    status: TxStatus = "rolled_back"
    try:
        async with conn.transaction():
            yield AsyncTransaction(writer, conn, pending)
            for writes, step in pending.holds():
                writes.keep(_ids(await execute_async(conn, step)))
            status = _before_commit(conn)
        status = _after_commit(conn, status)
    except BaseException:
        status = _after_error(conn, status)
        raise
    finally:
        pending.count(status)
    if status == "committed" and pending.holds_any:
        try:
            for step in await pending.deliver_async():
                async with conn.transaction():
                    note(step, _ids(await execute_async(conn, step)))
        except Exception:
            log.exception(_LEFT)


def execute(conn: psycopg.Connection[Any], step: Step) -> list[Any]:
    # A cursor of our own: the caller's may have another row factory, or a result still being read.
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        return cursor.execute(step.statement.psycopg.encode(), step.params).fetchall()


async def execute_async(conn: psycopg.AsyncConnection[Any], step: Step) -> list[Any]:
    async with psycopg.AsyncCursor(conn, row_factory=tuple_row) as cursor:
        await cursor.execute(step.statement.psycopg.encode(), step.params)
        return await cursor.fetchall()


def require_transaction(conn: AnyConnection, call: str) -> None:
    """Without autocommit, the first statement begins one."""
    if conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        raise TransactionRequired(
            f"{call} needs a transaction, and the connection is in none; write `with conn.transaction(): …` around it"
        )


def _ids(rows: list[Any]) -> set[int]:
    return {row[0] for row in rows}


def _require_idle(conn: AnyConnection) -> None:
    status = conn.info.transaction_status
    if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        raise TransactionRequired(
            "outbox.transaction begins and commits a transaction, and the connection is in one already: commit or "
            "roll back first, or use an autocommit connection"
        )


def _before_commit(conn: AnyConnection) -> TxStatus:
    """Unknown until COMMIT is answered. After an error that the body kept to itself, COMMIT rolls back."""
    failed = conn.info.transaction_status == TransactionStatus.INERROR
    return "rolled_back" if failed else "unknown"


def _after_commit(conn: AnyConnection, status: TxStatus) -> TxStatus:
    """A pipeline has only queued COMMIT, and a connection that is lost has not even done that."""
    idle = conn.info.transaction_status == TransactionStatus.IDLE
    answered = idle and conn.info.pipeline_status == PipelineStatus.OFF
    return "committed" if status == "unknown" and answered else status


def _after_error(conn: AnyConnection, status: TxStatus) -> TxStatus:
    """Where the connection is lost during COMMIT, nobody knows; one that is well has been told of the failure."""
    return status if status == "unknown" and conn.closed else "rolled_back"
