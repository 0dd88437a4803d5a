"""The one way to run statements in a service's transaction: psycopg or SQLAlchemy, sync or async, for each contract.

A call on an outbox is a script: a generator that yields its statements, receives their rows and returns the answer.
`run` and `run_async` drive a script on the connection or session that the service has. They never commit.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg import sql
from psycopg.adapt import PyFormat
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from outspark.database.names import TableName
from outspark.errors import TransactionRequired

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy import orm
    from sqlalchemy.ext import asyncio as aio
    from typing_extensions import TypeIs

    AnySession = orm.Session | orm.scoped_session[Any]
    AnyAsyncSession = aio.AsyncSession | aio.async_scoped_session[Any]
    Handle = psycopg.Connection[Any] | psycopg.Cursor[Any] | sqlalchemy.Connection | AnySession
    AsyncHandle = (
        psycopg.AsyncConnection[Any] | psycopg.AsyncCursor[Any] | aio.AsyncConnection | AnyAsyncSession
    )
    Target = psycopg.Connection[Any] | sqlalchemy.Connection | orm.Session

Answer = TypeVar("Answer")

_SYNC: Final = "a psycopg connection or cursor, or a SQLAlchemy Connection or Session"
_ASYNC: Final = "a psycopg AsyncConnection or AsyncCursor, or a SQLAlchemy AsyncConnection or AsyncSession"
_BINARY: Final = ("payloads", "messages")


class Statement(NamedTuple):
    """One statement with placeholders as psycopg and as SQLAlchemy's `text` write them."""

    psycopg: str
    sqlalchemy: str


class Step(NamedTuple):
    """A statement with its parameters.

    `needs`, for instance "send needs", is the beginning of the TransactionRequired that is raised if the connection
    would commit the statement by itself. Without it the statement may run outside a transaction.
    """

    statement: Statement
    params: dict[str, Any]
    needs: str = ""


Script = Generator[Step, list[Any], Answer]


def compose(write: Callable[..., str], table: TableName, **options: Any) -> Statement:
    """`write(table, placeholder, **options)` is a contract's function that returns the SQL."""
    return Statement(
        write(table, _psycopg_placeholder, **options), write(table, _sqlalchemy_placeholder, **options)
    )


def run(handle: Handle, call: str, script: Script[Answer]) -> Answer:
    """Drive `script` on `handle`. TypeError names `call` if `handle` is of another kind."""
    target = unwrap(handle)
    if not (isinstance(target, psycopg.Connection) or is_connection(target) or is_session(target)):
        raise wrong_handle(call, handle, f"{_SYNC}; {call}_async takes their async forms")
    try:
        step = next(script)
        while True:
            step = script.send(execute(target, step))
    except StopIteration as end:
        answer: Answer = end.value
        return answer


async def run_async(handle: AsyncHandle, call: str, script: Script[Answer]) -> Answer:
    """`run` for async handles. `call` is the name of the sync call."""
    target = unwrap(handle)
    if is_async_connection(target) or is_async_session(target):
        return await target.run_sync(run, call, script)
    if not isinstance(target, psycopg.AsyncConnection):
        raise wrong_handle(f"{call}_async", handle, f"{_ASYNC}; {call} takes their sync forms")
    try:
        step = next(script)
        while True:
            step = script.send(await execute_async(target, step))
    except StopIteration as end:
        answer: Answer = end.value
        return answer


def execute(target: Target, step: Step) -> list[Any]:
    """Run one step and return its rows."""
    if isinstance(target, psycopg.Connection):
        _refuse_autocommit(target, step)
        # A cursor of our own: the caller's may have another row factory, or a result that is still being read.
        with psycopg.Cursor(target, row_factory=tuple_row) as cursor:
            return cursor.execute(step.statement.psycopg, step.params).fetchall()
    from sqlalchemy import text

    connection = target.connection() if is_session(target) else target
    if step.needs and getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise TransactionRequired(
            f"{step.needs} a transaction, and the engine commits each statement by itself; use another isolation level"
        )
    return list(connection.execute(text(step.statement.sqlalchemy), step.params))


async def execute_async(conn: psycopg.AsyncConnection[Any], step: Step) -> list[Any]:
    """`execute` on psycopg's AsyncConnection."""
    _refuse_autocommit(conn, step)
    async with psycopg.AsyncCursor(conn, row_factory=tuple_row) as cursor:
        await cursor.execute(step.statement.psycopg, step.params)
        return await cursor.fetchall()


def unwrap(handle: Any) -> Any:
    """The connection of a cursor and the session of a scoped session; any other handle is returned as it is."""
    if isinstance(handle, psycopg.Cursor | psycopg.AsyncCursor):
        return handle.connection
    if _is(handle, "sqlalchemy.orm", "scoped_session"):
        return handle()
    if _is(handle, "sqlalchemy.ext.asyncio", "async_scoped_session"):
        return handle()
    return handle


def is_connection(handle: object) -> TypeIs[sqlalchemy.Connection]:
    return _is(handle, "sqlalchemy", "Connection")


def is_session(handle: object) -> TypeIs[orm.Session]:
    return _is(handle, "sqlalchemy.orm", "Session")


def is_async_connection(handle: object) -> TypeIs[aio.AsyncConnection]:
    return _is(handle, "sqlalchemy.ext.asyncio", "AsyncConnection")


def is_async_session(handle: object) -> TypeIs[aio.AsyncSession]:
    return _is(handle, "sqlalchemy.ext.asyncio", "AsyncSession")


def wrong_handle(call: str, handle: object, allowed: str) -> TypeError:
    kind = type(handle)
    return TypeError(f"{call} cannot write through {kind.__module__}.{kind.__qualname__}; it takes {allowed}")


def _is(handle: object, module: str, name: str) -> bool:
    """`handle` can be no instance of a class that the program has not imported, so this imports no SQLAlchemy."""
    # import_module waits for an import that another thread has begun.
    return module in sys.modules and isinstance(handle, getattr(importlib.import_module(module), name))


def _refuse_autocommit(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], step: Step) -> None:
    if step.needs and conn.autocommit and conn.info.transaction_status is TransactionStatus.IDLE:
        raise TransactionRequired(
            f"{step.needs} a transaction, and the connection commits each statement by itself; "
            "write `with conn.transaction(): …` around it"
        )


def _psycopg_placeholder(name: str) -> sql.Composable:
    # In text format, psycopg sends each byte of a payload as two characters.
    return sql.Placeholder(name, format=PyFormat.BINARY if name in _BINARY else PyFormat.AUTO)


def _sqlalchemy_placeholder(name: str) -> sql.Composable:
    return sql.SQL(f":{name}")
