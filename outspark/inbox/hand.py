"""A thread with connections of its own, in which handlers run: one that hangs is left behind with its session ended."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import psycopg

from outspark import conninfo
from outspark.contracts import arrays
from outspark.inbox.driving import run, run_async
from outspark.inbox.group import Broken, Group, Unable
from outspark.inbox.outcome import HandlingOutcome, judge
from outspark.inbox.sessions import AsyncSessions, Sessions
from outspark.relay.connection import CONFIGURE

log = logging.getLogger(__name__)

TERMINATE = """\
-- End the session of a handler that hangs, and with it its transaction
SELECT pg_terminate_backend(pid) FROM unnest(%(pids)s::int[]) AS pid"""


@dataclass(slots=True)
class Hand:
    """Does one group at a time. `name` shows in pg_stat_activity; `settings` are those of its sessions."""

    url: str
    name: str
    settings: dict[str, str]
    pids: dict[str, int] = field(default_factory=dict)
    """The session of each kind that was opened last."""
    _groups: SimpleQueue[Group | None] = field(default_factory=SimpleQueue)
    _thread: threading.Thread | None = None
    _left: bool = False
    _conn: psycopg.Connection[Any] | None = None
    _sessions: Sessions | None = None
    _async_conn: psycopg.AsyncConnection[Any] | None = None
    _async_sessions: AsyncSessions | None = None

    def begin(self, group: Group) -> None:
        """Start on a group; `group.done` is set when it has its result."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self._thread.start()
        self._groups.put(group)

    def leave(self) -> list[int]:
        """Give up on a hand that hangs: it will take no more groups. Answers the sessions that are to be ended."""
        self._left = True
        self._groups.put(None)
        return list(self.pids.values())

    def close(self, timeout: float = 10.0) -> None:
        self._groups.put(None)
        if self._thread is not None:
            self._thread.join(timeout)

    def _work(self) -> None:
        with asyncio.Runner() as runner:
            while (group := self._groups.get()) is not None and not self._left:
                try:
                    group.result = self._do(group, runner)
                except (Broken, Unable) as broken:
                    group.result = broken
                except BaseException as error:  # noqa: BLE001 - the waiting side is told
                    group.result = Broken(group.at_fault(), judge(error))
                group.done.set()
            if self._async_conn is not None:
                runner.run(self._async_conn.close())
        if self._conn is not None:
            self._conn.close()

    def _do(self, group: Group, runner: asyncio.Runner) -> list[HandlingOutcome]:
        try:
            return runner.run(self._do_async(group)) if group.is_async else self._do_sync(group)
        except Unable:
            # The session may have ended while nobody needed it.
            return runner.run(self._do_async(group)) if group.is_async else self._do_sync(group)

    def _do_sync(self, group: Group) -> list[HandlingOutcome]:
        if self._conn is None or self._conn.closed:
            try:
                self._conn = self._connect()
            except psycopg.Error as error:
                raise Unable(error) from error
            self._sessions = Sessions(self._conn)
            self.pids["sync"] = self._conn.info.backend_pid
        assert self._sessions is not None
        return run(self._conn, self._sessions, group)

    async def _do_async(self, group: Group) -> list[HandlingOutcome]:
        if self._async_conn is None or self._async_conn.closed:
            try:
                self._async_conn = await self._connect_async()
            except psycopg.Error as error:
                raise Unable(error) from error
            self._async_sessions = AsyncSessions(self._async_conn)
            self.pids["async"] = self._async_conn.info.backend_pid
        assert self._async_sessions is not None
        return await run_async(self._async_conn, self._async_sessions, group)

    def _connect(self) -> psycopg.Connection[Any]:
        conn = psycopg.connect(**self._options(), autocommit=True)
        arrays.register(conn)
        conn.execute(CONFIGURE, self._settings())
        conn.autocommit = False
        return conn

    async def _connect_async(self) -> psycopg.AsyncConnection[Any]:
        conn = await psycopg.AsyncConnection.connect(**self._options(), autocommit=True)
        arrays.register(conn)
        await conn.execute(CONFIGURE, self._settings())
        await conn.set_autocommit(False)
        return conn

    def _options(self) -> dict[str, Any]:
        return conninfo.options(self.url, application_name=self.name[:63])

    def _settings(self) -> dict[str, list[str]]:
        settings = {**conninfo.server_settings(), **self.settings}
        return {"names": list(settings), "values": list(settings.values())}
