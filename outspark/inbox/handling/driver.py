"""Runs jobs on a session of their own: `SyncDriver` waits for each step of a script, `AsyncDriver` awaits it.

A driver answers with a `JobResult` whatever happens, and rolls back what must not stand. It opens its session when the
first job needs it, and a new one when that has ended. Which statements run, and in which order, `transaction` decides.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar, assert_never

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus

from outspark.database import arrays, conninfo
from outspark.database.session import CONFIGURE
from outspark.inbox.handling.batch import DatabaseUnavailable, Job, JobResult
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
from outspark.inbox.outcome import TimedOut
from outspark.inbox.router import Handle

A = TypeVar("A")

# What a handler may raise and only its event fails; anything else ends the job.
_FAILURES: Final = (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """`name` shows in pg_stat_activity."""

    url: str
    name: str
    settings: dict[str, str]

    def connect(self) -> dict[str, Any]:
        return {**conninfo.options(self.url, application_name=self.name[:63]), "autocommit": True}

    def configure(self) -> dict[str, list[str]]:
        settings = {**conninfo.server_settings(), **self.settings}
        return {"names": list(settings), "values": list(settings.values())}


class SyncDriver:
    """`pids` are the open sessions of the thread, by kind; both drivers of a thread share them."""

    def __init__(self, options: SessionOptions, pids: dict[str, int]) -> None:
        self._options = options
        self._pids = pids
        self._conn: psycopg.Connection[Any] | None = None

    def run(self, job: Job) -> JobResult:
        conn = None
        try:
            conn = self._connected()
            job.progress.pids = tuple(self._pids.values())
            if job.settings.strategy.complete != "with":
                return self._drive(own_transaction(job, conn), conn)
            with suppress(psycopg.Rollback), conn.transaction():
                result = self._drive(shared_transaction(job, conn), conn)
                if not isinstance(result, list):
                    raise psycopg.Rollback
            return result
        except BaseException as error:  # noqa: BLE001 - the worker's thread decides
            if conn is None and isinstance(error, psycopg.Error):
                return DatabaseUnavailable(error)
            if conn is not None:
                # Or the next job would find the transaction aborted.
                with suppress(psycopg.Error):
                    conn.rollback()
            return job.broke(error)

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()

    def _connected(self) -> psycopg.Connection[Any]:
        if self._conn is None or self._conn.closed:
            conn = psycopg.connect(**self._options.connect())
            arrays.register(conn)
            conn.execute(CONFIGURE, self._options.configure())
            conn.autocommit = False
            self._conn, self._handle, self._sessions = conn, Handle(conn), Sessions(conn)
            self._pids["sync"] = conn.info.backend_pid
        return self._conn

    def _drive(self, script: Script[A], conn: psycopg.Connection[Any]) -> A:
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
                answer = self._perform(step, conn)
            except BaseException as error:  # noqa: BLE001 - the script decides
                failure = error

    def _perform(self, step: Step, conn: psycopg.Connection[Any]) -> Any:
        match step:
            case Call(task, handler):
                try:
                    if not handler.session:
                        handler.call(task.event, self._handle)
                    else:
                        with self._sessions.open() as session:
                            handler.call(task.event, Handle(conn, session))
                except _FAILURES as error:
                    return error
            case Keep():
                _keep(conn)
            case Run(statement, parameters):
                cursor = conn.execute(statement.encode(), parameters, prepare=parameters is not None)
                return cursor.fetchall() if cursor.description else []
            case End("commit"):
                conn.commit()
            case End():
                conn.rollback()
            case _:
                assert_never(step)
        return None


def _keep(conn: psycopg.Connection[Any]) -> None:
    """By one call of libpq, at a quarter of what `execute` costs: PASS takes no parameters and answers no rows."""
    with conn.lock:
        result = conn.pgconn.exec_(PASS.encode())
    if result.status != ExecStatus.COMMAND_OK:
        if conn.pgconn.status != ConnStatus.OK:
            raise psycopg.OperationalError(result.get_error_message())
        raise error_from_result(result)


class AsyncDriver:
    """The same for async handlers, on a loop that the handler thread runs."""

    def __init__(self, options: SessionOptions, pids: dict[str, int]) -> None:
        self._options = options
        self._pids = pids
        self._conn: psycopg.AsyncConnection[Any] | None = None

    async def run(self, job: Job) -> JobResult:
        conn = None
        try:
            conn = await self._connected()
            job.progress.pids = tuple(self._pids.values())
            if job.settings.strategy.complete != "with":
                return await self._drive(own_transaction(job, conn), conn)
            with suppress(psycopg.Rollback):
                async with conn.transaction():
                    result = await self._drive(shared_transaction(job, conn), conn)
                    if not isinstance(result, list):
                        raise psycopg.Rollback
            return result
        except BaseException as error:  # noqa: BLE001 - the worker's thread decides
            if conn is None and isinstance(error, psycopg.Error):
                return DatabaseUnavailable(error)
            if conn is not None:
                with suppress(psycopg.Error):
                    await conn.rollback()
            return job.broke(error)

    async def close(self) -> None:
        if self._conn is not None:
            await self._conn.close()

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._conn is None or self._conn.closed:
            conn = await psycopg.AsyncConnection.connect(**self._options.connect())
            arrays.register(conn)
            await conn.execute(CONFIGURE, self._options.configure())
            await conn.set_autocommit(False)
            self._conn, self._handle, self._sessions = conn, Handle(conn), AsyncSessions(conn)
            self._pids["async"] = conn.info.backend_pid
        return self._conn

    async def _drive(self, script: Script[A], conn: psycopg.AsyncConnection[Any]) -> A:
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
                answer = await self._perform(step, conn)
            except BaseException as error:  # noqa: BLE001 - the script decides
                failure = error

    async def _perform(self, step: Step, conn: psycopg.AsyncConnection[Any]) -> Any:
        match step:
            case Call():
                try:
                    await self._call(step, conn)
                except _FAILURES as error:
                    return error
            case Keep():
                await conn.execute(PASS.encode())
            case Run(statement, parameters):
                cursor = await conn.execute(statement.encode(), parameters, prepare=parameters is not None)
                return await cursor.fetchall() if cursor.description else []
            case End("commit"):
                await conn.commit()
            case End():
                await conn.rollback()
            case _:
                assert_never(step)
        return None

    async def _call(self, step: Call, conn: psycopg.AsyncConnection[Any]) -> None:
        event, handler = step.task.event, step.handler
        try:
            async with asyncio.timeout(step.task.timeout.total_seconds()) as limit:
                if not handler.session:
                    await handler.call(event, self._handle)
                else:
                    async with self._sessions.open() as session:
                        await handler.call(event, Handle(conn, session))
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimedOut(step.task.timeout) from error
