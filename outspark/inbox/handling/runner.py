"""Runs handlers in threads of their own, group by group, each with a deadline."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from queue import SimpleQueue
from typing import Any

import psycopg

from outspark.config import durations
from outspark.config.inbox import WorkSettings
from outspark.database import arrays, conninfo
from outspark.database.session import CONFIGURE
from outspark.errors import HandlerHung
from outspark.inbox.event import InboxEvent
from outspark.inbox.handling.driver import run, run_async
from outspark.inbox.handling.group import DatabaseUnavailable, Group, HandlerFailed, Task, TransactionLost
from outspark.inbox.handling.session import WorkerSession
from outspark.inbox.handling.settle import Batch
from outspark.inbox.handling.sqlalchemy_sessions import AsyncSessions, Sessions
from outspark.inbox.handling.transaction import SETTINGS
from outspark.inbox.outcome import Handled, HandlingOutcome, outcome_of
from outspark.inbox.router import Router
from outspark.observability import metrics
from outspark.observability.metrics import Tally
from outspark.outcome import HELD, Held, Retry, Skipped

log = logging.getLogger(__name__)

TERMINATE = """\
-- End the session of a handler that hangs, and with it its transaction
SELECT pg_terminate_backend(pid) FROM unnest(%(pids)s::int[]) AS pid"""


@dataclass(slots=True)
class HandlerThread:
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
                except (TransactionLost, DatabaseUnavailable) as broken:
                    group.result = broken
                except BaseException as error:  # noqa: BLE001 - the waiting side is told
                    group.result = TransactionLost(group.at_fault(), outcome_of(error))
                group.done.set()
            if self._async_conn is not None:
                runner.run(self._async_conn.close())
        if self._conn is not None:
            self._conn.close()

    def _do(self, group: Group, runner: asyncio.Runner) -> list[HandlingOutcome]:
        try:
            return runner.run(self._do_async(group)) if group.is_async else self._do_sync(group)
        except DatabaseUnavailable:
            # The session may have ended while nobody needed it.
            return runner.run(self._do_async(group)) if group.is_async else self._do_sync(group)

    def _do_sync(self, group: Group) -> list[HandlingOutcome]:
        if self._conn is None or self._conn.closed:
            try:
                self._conn = self._connect()
            except psycopg.Error as error:
                raise DatabaseUnavailable(error) from error
            self._sessions = Sessions(self._conn)
            self.pids["sync"] = self._conn.info.backend_pid
        assert self._sessions is not None
        return run(self._conn, self._sessions, group)

    async def _do_async(self, group: Group) -> list[HandlingOutcome]:
        if self._async_conn is None or self._async_conn.closed:
            try:
                self._async_conn = await self._connect_async()
            except psycopg.Error as error:
                raise DatabaseUnavailable(error) from error
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


IDLE_MARGIN = 5.0
LOOKS = 10
LONGEST_LOOK = 1.0
SAVEPOINT_BATCHES = 20
"""Groups with savepoints after a failure."""


class HandlerRunner:
    """The hand that works, and the count of those that hang."""

    def __init__(
        self,
        url: str,
        router: Router,
        settings: WorkSettings,
        tally: Tally,
        moved: Callable[[], None] | None = None,
    ) -> None:
        self._url = url
        self._router = router
        self._settings = settings
        self._tally = tally
        self._moved = moved
        self._handler_thread: HandlerThread | None = None
        self._hung = 0
        self._savepoint_batches = 0
        self._next_beat = 0.0

    def handle(self, session: WorkerSession, batch: Batch) -> None:
        """Fill in `batch.outcomes`. After an error, what has no outcome was not done, or is undone."""
        self._beat_later()
        for tasks in self._groups([self._task(event) for event in batch.events]):
            while todo := self._still_to_do(batch, tasks):
                if not self._do(session, batch, todo):
                    # All that was in the transaction is undone. Alone, each shows what it does.
                    for task in todo:
                        self._do(session, batch, self._still_to_do(batch, [task]))
                    break

    def close(self) -> None:
        if self._handler_thread is not None:
            self._handler_thread.close()
            self._handler_thread = None

    def _task(self, event: InboxEvent) -> Task:
        handler = self._router.find(event.type, event.source)
        own = None if handler is None else handler.timeout
        return Task(event, handler, own or self._settings.timeout)

    def _groups(self, tasks: Sequence[Task]) -> Iterator[list[Task]]:
        """Runs of tasks of the same kind, no longer than a transaction may be."""
        size = self._settings.transaction_size if self._settings.strategy.complete == "with" else 1
        for _, kin in groupby(tasks, key=lambda task: task.handler is not None and task.handler.is_async):
            same = list(kin)
            for start in range(0, len(same), size):
                yield same[start : start + size]

    def _still_to_do(self, batch: Batch, tasks: Sequence[Task]) -> list[Task]:
        """Those without an outcome. With order per key, what comes after a failure is held."""
        if self._settings.ordering == "key":
            failed = {
                event.key
                for event in batch.events
                if not isinstance(batch.outcomes.get(event.id, HELD), Handled | Skipped | Held)
            }
            for task in tasks:
                if task.event.key is not None and task.event.key in failed:
                    batch.outcomes.setdefault(task.event.id, HELD)
        return [task for task in tasks if task.event.id not in batch.outcomes]

    def _do(self, session: WorkerSession, batch: Batch, tasks: Sequence[Task]) -> bool:
        """Run one group. False when it broke: only the one at fault has an outcome then, if anybody knows who."""
        if not tasks:
            return True
        self._savepoint_batches = max(self._savepoint_batches - 1, 0)
        group = Group(
            tasks=tasks,
            token=batch.token,
            statements=session.statements,
            complete=self._settings.strategy.complete,
            ordered=self._settings.ordering == "key",
            unhandled=self._settings.unhandled,
            savepoints=self._savepoint_batches > 0 or len(tasks) == 1,
        )
        result = self._run(session, batch, group)
        self._tally.observe_many(metrics.INBOX_HANDLER_LATENCY, group.took, group=self._settings.group)
        if isinstance(result, DatabaseUnavailable):
            raise result.error
        if not isinstance(result, TransactionLost):
            batch.outcomes |= {t.event.id: outcome for t, outcome in zip(tasks, result, strict=False)}
            return True
        if isinstance(result, HandlerFailed):
            if result.number is not None:
                batch.outcomes[tasks[result.number].event.id] = result.outcome
            self._savepoint_batches = SAVEPOINT_BATCHES
            return self._do(session, batch, self._still_to_do(batch, tasks))
        # When the database is gone for all of us, no event is at fault: then this raises.
        session.conn.execute("SELECT 1")
        # In order, what stands before the one at fault has to be through first; so it is found again, alone.
        if result.number is not None and (len(tasks) == 1 or self._settings.ordering == "none"):
            batch.outcomes[tasks[result.number].event.id] = result.outcome
        if self._hung >= self._settings.max_hung:
            raise HandlerHung(
                f"{self._hung} handlers of worker {self._settings.name} hang, and threads cannot be ended; "
                "start its process again"
            )
        return False

    def _run(
        self, session: WorkerSession, batch: Batch, group: Group
    ) -> list[HandlingOutcome] | TransactionLost | DatabaseUnavailable:
        if self._handler_thread is None:
            self._handler_thread = HandlerThread(
                self._url, f"outspark inbox {self._settings.name} handlers", self._session_settings()
            )
        self._handler_thread.begin(group)
        # The deadline moves as one handler follows another, so it is looked at more often than it can pass.
        look = min(min(task.timeout.total_seconds() for task in group.tasks) / LOOKS, LONGEST_LOOK)
        self._move()
        while not group.done.wait(min(look, max(self._next_beat - time.monotonic(), 0.0))):
            if time.monotonic() >= group.deadline:
                return self._leave_behind(session, group)
            # A handler within its time is no lane that hangs, however long that is.
            self._move()
            if time.monotonic() >= self._next_beat:
                self._beat(session, batch)
        assert group.result is not None
        return group.result

    def _move(self) -> None:
        if self._moved is not None:
            self._moved()

    def _leave_behind(self, session: WorkerSession, group: Group) -> TransactionLost:
        """The thread cannot be ended, but its session can: nothing it does from now on will stand."""
        assert self._handler_thread is not None
        thread, self._handler_thread = self._handler_thread, None
        number = group.at_fault()
        session.conn.execute(TERMINATE, {"pids": thread.leave()})
        self._hung += 1
        self._tally.add(metrics.INBOX_HUNG_TOTAL, group=self._settings.group)
        timeout = self._settings.timeout if number is None else group.tasks[number].timeout
        return TransactionLost(number, Retry(f"the handler took longer than {durations.text(timeout)}"))

    def _beat(self, session: WorkerSession, batch: Batch) -> None:
        """Say that we are still at it. A row that is being completed at this moment needs no word."""
        self._beat_later()
        rest = batch.rest()
        named = {"ids": [event.id for event in rest], "created_ats": [event.created_at for event in rest]}
        try:
            session.rows(session.statements.heartbeat, {**named, "token": batch.token})
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            log.debug("locks were not refreshed: a row is being written", extra={"group": session.group})

    def _beat_later(self) -> None:
        self._next_beat = time.monotonic() + self._settings.lease.total_seconds() / 3

    def _session_settings(self) -> dict[str, str]:
        # A process that was stopped in the middle of a handler must not hold its locks for ever.
        longest = self._router.longest_timeout(self._settings.timeout).total_seconds() + IDLE_MARGIN
        guarded = SETTINGS if self._settings.strategy.complete == "with" else {}
        return {"idle_in_transaction_session_timeout": f"{int(longest * 1000)}ms", **guarded}
