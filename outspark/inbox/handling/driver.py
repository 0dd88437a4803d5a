"""Takes the steps of handling on a connection, waiting or awaiting."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus

from outspark.inbox.handling.group import Group, Task
from outspark.inbox.handling.sqlalchemy_sessions import AsyncSessions, Sessions
from outspark.inbox.handling.transaction import (
    PASS,
    Call,
    End,
    Keep,
    Run,
    Script,
    Step,
    own_transaction,
    shared_transaction,
)
from outspark.inbox.outcome import HandlingOutcome, TimedOut
from outspark.inbox.router import Handle, Handler

A = TypeVar("A")


def run(conn: psycopg.Connection[Any], sessions: Sessions, group: Group) -> list[HandlingOutcome]:
    """Broken when all that was done is undone; Unable when nothing was done."""
    try:
        if group.complete != "with":
            return _drive(own_transaction(group, conn), conn, sessions)
        with conn.transaction():
            return _drive(shared_transaction(group, conn), conn, sessions)
    except psycopg.Error as error:
        # Or the next handler would find the transaction aborted.
        if not conn.closed:
            conn.rollback()
        raise group.broke(error) from error


async def run_async(
    conn: psycopg.AsyncConnection[Any], sessions: AsyncSessions, group: Group
) -> list[HandlingOutcome]:
    try:
        if group.complete != "with":
            return await _drive_async(own_transaction(group, conn), conn, sessions)
        async with conn.transaction():
            return await _drive_async(shared_transaction(group, conn), conn, sessions)
    except psycopg.Error as error:
        if not conn.closed:
            await conn.rollback()
        raise group.broke(error) from error


def _drive(script: Script[A], conn: psycopg.Connection[Any], sessions: Sessions) -> A:
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            step = script.send(answer) if failure is None else script.throw(failure)
        except StopIteration as end:
            value: A = end.value
            return value
        answer, failure = None, None
        try:
            answer = _take(step, conn, sessions)
        except BaseException as error:  # noqa: BLE001 - the script decides
            failure = error


def _take(step: Step, conn: psycopg.Connection[Any], sessions: Sessions) -> Any:
    match step:
        case Call(task, handler) if handler.session:
            with sessions.open() as session:
                handler.call(task.event, Handle(conn, session))
        case Call(task, handler):
            handler.call(task.event, Handle(conn))
        case Keep():
            _keep(conn)
        case Run(statement, parameters):
            cursor = conn.execute(statement.encode(), parameters, prepare=parameters is not None)
            return cursor.fetchall() if cursor.description else []
        case End("commit"):
            conn.commit()
        case End():
            conn.rollback()
    return None


def _keep(conn: psycopg.Connection[Any]) -> None:
    """By a call of libpq, at a quarter of what `execute` costs: this asks for nothing and answers nothing."""
    with conn.lock:
        result = conn.pgconn.exec_(PASS.encode())
    if result.status != ExecStatus.COMMAND_OK:
        if conn.pgconn.status != ConnStatus.OK:
            raise psycopg.OperationalError(result.get_error_message())
        raise error_from_result(result)


async def _drive_async(script: Script[A], conn: psycopg.AsyncConnection[Any], sessions: AsyncSessions) -> A:
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            step = script.send(answer) if failure is None else script.throw(failure)
        except StopIteration as end:
            value: A = end.value
            return value
        answer, failure = None, None
        try:
            answer = await _take_async(step, conn, sessions)
        except BaseException as error:  # noqa: BLE001 - the script decides
            failure = error


async def _take_async(step: Step, conn: psycopg.AsyncConnection[Any], sessions: AsyncSessions) -> Any:
    match step:
        case Run(statement, parameters):
            cursor = await conn.execute(statement.encode(), parameters, prepare=parameters is not None)
            return await cursor.fetchall() if cursor.description else []
        case Keep():
            await conn.execute(PASS.encode())
        case End("commit"):
            await conn.commit()
        case End():
            await conn.rollback()
        case Call(task, handler):
            try:
                async with asyncio.timeout(task.timeout.total_seconds()) as limit:
                    await _call_async(task, handler, conn, sessions)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise TimedOut(task.timeout) from error
    return None


async def _call_async(
    task: Task, handler: Handler, conn: psycopg.AsyncConnection[Any], sessions: AsyncSessions
) -> None:
    if not handler.is_async:
        raise TypeError(f"{handler.name} is not async")
    if handler.session:
        async with sessions.open() as session:
            await handler.call(task.event, Handle(conn, session))
    else:
        await handler.call(task.event, Handle(conn))
