"""psycopg's side: a transaction that sends its messages as soon as it is committed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from outspark.errors import TransactionRequired
from outspark.outbox.jeap.new_message import NewMessage
from outspark.outbox.jeap.pending import Pending, left_to_the_relay
from outspark.outbox.jeap.sender import TxStatus
from outspark.outbox.statements import Script, run, run_async

AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


class Write(Protocol):
    """Writes messages into one outbox and adds them to what is pending; it returns the ids of the rows."""

    def __call__(
        self, messages: Sequence[NewMessage], pending: Pending, *, immediate: bool
    ) -> Script[list[int]]: ...


class Transaction:
    """A transaction of one outbox, on one connection: `outbox.transaction(conn)` makes it."""

    def __init__(self, write: Write, conn: psycopg.Connection[Any], pending: Pending) -> None:
        self._write, self._conn, self._pending = write, conn, pending

    def send(self, *messages: NewMessage) -> list[int]:
        """Write messages that are sent as soon as the transaction is committed. Returns the ids of the rows."""
        return run(self._conn, "send", self._write(messages, self._pending, immediate=True))

    def send_scheduled(self, *messages: NewMessage) -> list[int]:
        """Write messages for the relay to send. Returns the ids of the rows."""
        return run(self._conn, "send_scheduled", self._write(messages, self._pending, immediate=False))


class AsyncTransaction:
    """`Transaction` on psycopg's AsyncConnection."""

    def __init__(self, write: Write, conn: psycopg.AsyncConnection[Any], pending: Pending) -> None:
        self._write, self._conn, self._pending = write, conn, pending

    async def send(self, *messages: NewMessage) -> list[int]:
        return await run_async(self._conn, "send", self._write(messages, self._pending, immediate=True))

    async def send_scheduled(self, *messages: NewMessage) -> list[int]:
        script = self._write(messages, self._pending, immediate=False)
        return await run_async(self._conn, "send_scheduled", script)


@contextmanager
def transaction(write: Write, conn: psycopg.Connection[Any]) -> Iterator[Transaction]:
    _require_idle(conn)
    pending = Pending()
    with _Ending(conn, pending) as ending:
        with conn.transaction():
            yield Transaction(write, conn, pending)
            run(conn, "transaction", pending.hold())
            ending.before_commit()
    if ending.status == "committed" and pending.holds_any:
        with left_to_the_relay():
            for mark in pending.deliver():
                with conn.transaction():
                    run(conn, "transaction", mark)


@asynccontextmanager
async def transaction_async(
    write: Write, conn: psycopg.AsyncConnection[Any]
) -> AsyncIterator[AsyncTransaction]:
    _require_idle(conn)
    pending = Pending()
    with _Ending(conn, pending) as ending:
        async with conn.transaction():
            yield AsyncTransaction(write, conn, pending)
            await run_async(conn, "transaction", pending.hold())
            ending.before_commit()
    if ending.status == "committed" and pending.holds_any:
        with left_to_the_relay():
            for mark in await pending.deliver_async():
                async with conn.transaction():
                    await run_async(conn, "transaction", mark)


class _Ending:
    """Around a transaction: finds out how it ends, as far as the connection shows that, and counts its messages."""

    def __init__(self, conn: AnyConnection, pending: Pending) -> None:
        self.status: TxStatus = "rolled_back"
        self._conn, self._pending = conn, pending

    def __enter__(self) -> _Ending:
        return self

    def before_commit(self) -> None:
        """The end is unknown until COMMIT is answered. After an error that the body caught, COMMIT rolls back."""
        if self._conn.info.transaction_status != TransactionStatus.INERROR:
            self.status = "unknown"

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self.status == "unknown":
            self.status = self._after_commit() if error is None else self._after_error()
        self._pending.count(self.status)

    def _after_commit(self) -> TxStatus:
        """A pipeline has only queued COMMIT, and a lost connection has not even done that."""
        info = self._conn.info
        answered = (
            info.transaction_status == TransactionStatus.IDLE and info.pipeline_status == PipelineStatus.OFF
        )
        return "committed" if answered else "unknown"

    def _after_error(self) -> TxStatus:
        """If the connection was lost during COMMIT, the end stays unknown; a healthy one has reported the failure."""
        return "unknown" if self._conn.closed else "rolled_back"


def _require_idle(conn: AnyConnection) -> None:
    status = conn.info.transaction_status
    if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        raise TransactionRequired(
            "outbox.transaction begins and commits a transaction, and the connection is in one already: commit or "
            "roll back first, or use an autocommit connection"
        )
