"""Runs the statements of a call one after the other on whatever connection a service has, waiting or awaiting."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import psycopg
from psycopg.rows import tuple_row

from outspark.outbox import handles

if TYPE_CHECKING:
    import sqlalchemy

    from outspark.outbox.handles import AsyncHandle, Handle

Answer = TypeVar("Answer")


class Step(NamedTuple):
    """One statement for either driver."""

    psycopg: str
    sqlalchemy: str
    params: dict[str, Any]


Steps = Generator[Step, list[Any], Answer]
"""Yields what to run, is sent its rows, and returns the answer to the call."""

Begin = Callable[[bool], Steps[Answer]]
"""Told whether the statements share a transaction, or each is committed by itself."""


def run(conn: Handle, begin: Begin[Answer]) -> Answer:
    if isinstance(conn, psycopg.Connection | psycopg.Cursor):
        # A cursor of our own: the caller's may have another row factory, or a result still being read.
        connection = conn if isinstance(conn, psycopg.Connection) else conn.connection
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            return _drive(
                begin(_share_transaction(connection)),
                lambda step: cursor.execute(step.psycopg, step.params).fetchall(),
            )
    found = _sqlalchemy(conn)
    if found is None:
        raise _wrong_handle(conn, "a psycopg connection or cursor, or a SQLAlchemy Connection or Session")
    return _run_sqlalchemy(found, begin)


async def run_async(conn: AsyncHandle, begin: Begin[Answer]) -> Answer:
    if isinstance(conn, psycopg.AsyncConnection | psycopg.AsyncCursor):
        connection = conn if isinstance(conn, psycopg.AsyncConnection) else conn.connection
        async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
            return await _drive_async(begin(_share_transaction(connection)), cursor)
    found = handles.as_async_session(conn) or handles.as_async_connection(conn)
    if found is None:
        raise _wrong_handle(
            conn, "psycopg's AsyncConnection, or SQLAlchemy's AsyncConnection or AsyncSession"
        )
    return await found.run_sync(run, begin)


def _run_sqlalchemy(connection: sqlalchemy.Connection, begin: Begin[Answer]) -> Answer:
    from sqlalchemy import text

    alone = getattr(connection.connection.dbapi_connection, "autocommit", False)
    return _drive(begin(not alone), lambda step: list(connection.execute(text(step.sqlalchemy), step.params)))


def _sqlalchemy(conn: object) -> sqlalchemy.Connection | None:
    session = handles.as_session(conn)
    return handles.as_connection(conn) if session is None else session.connection()


def _share_transaction(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return not conn.autocommit or conn.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE


def _drive(steps: Steps[Answer], execute: Callable[[Step], list[Any]]) -> Answer:
    rows: list[Any] | None = None
    while True:
        try:
            step = next(steps) if rows is None else steps.send(rows)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        rows = execute(step)


async def _drive_async(steps: Steps[Answer], cursor: psycopg.AsyncCursor[Any]) -> Answer:
    rows: list[Any] | None = None
    while True:
        try:
            step = next(steps) if rows is None else steps.send(rows)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        await cursor.execute(step.psycopg, step.params)
        rows = await cursor.fetchall()


def _wrong_handle(conn: object, allowed: str) -> TypeError:
    kind = type(conn)
    return TypeError(
        f"enqueue cannot write through {kind.__module__}.{kind.__qualname__}; it takes {allowed}"
    )
