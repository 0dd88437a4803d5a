"""Runs the handlers of a batch in a thread of their own, job by job, each handler with a deadline.

`HandlerRunner` belongs to the worker's thread: it cuts a batch into jobs, waits for each result, keeps the locks of the
batch fresh meanwhile, and decides what runs again. `HandlerThread` does the jobs. What the two tell each other is in
`batch`; nothing is raised from one thread to the other.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import assert_never

import psycopg

from outspark.config import durations
from outspark.config.inbox import WorkSettings
from outspark.errors import HandlerHung
from outspark.inbox.handling.batch import (
    Batch,
    DatabaseUnavailable,
    HandlerFailed,
    Job,
    JobResult,
    Task,
    TransactionLost,
)
from outspark.inbox.handling.driver import AsyncDriver, SessionOptions, SyncDriver
from outspark.inbox.handling.session import WorkerSession
from outspark.inbox.handling.transaction import SETTINGS
from outspark.inbox.router import Router
from outspark.observability import metrics
from outspark.observability.metrics import Tally
from outspark.outcome import Retry

log = logging.getLogger(__name__)

TERMINATE = """\
-- End the sessions of a handler thread that hangs, and with them its transaction
SELECT pg_terminate_backend(pid) FROM unnest(%(pids)s::int[]) AS pid"""

IDLE_MARGIN = 5.0
POLLS = 10
LONGEST_POLL = 1.0
SAVEPOINT_BATCHES = 20
"""Jobs with savepoints after a failure."""


class HandlerThread:
    """Takes one job at a time from `jobs` and puts its result into `results`. None ends the thread.

    A thread that was left behind keeps its queues to itself: no one reads its late result, and then the thread ends.
    """

    def __init__(self, options: SessionOptions) -> None:
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.results: SimpleQueue[JobResult] = SimpleQueue()
        pids: dict[str, int] = {}
        self._sync, self._async = SyncDriver(options, pids), AsyncDriver(options, pids)
        self._thread = threading.Thread(target=self._work, name=options.name, daemon=True)
        self._thread.start()

    def close(self, timeout: float = 10.0) -> None:
        self.jobs.put(None)
        self._thread.join(timeout)

    def _work(self) -> None:
        with asyncio.Runner() as loop:
            while (job := self.jobs.get()) is not None:
                # The session may have ended while no job needed it, so a new one is tried once.
                for _ in range(2):
                    result = loop.run(self._async.run(job)) if job.is_async else self._sync.run(job)
                    if not isinstance(result, DatabaseUnavailable):
                        break
                self.results.put(result)
            loop.run(self._async.close())
        self._sync.close()


class HandlerRunner:
    """For the worker's thread alone. `moved` is called while handlers run, for the host that watches the lane."""

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
        self._moved = moved or (lambda: None)
        self._thread: HandlerThread | None = None
        self._hung = 0
        self._savepoint_batches = 0
        self._next_beat = 0.0

    def handle(self, session: WorkerSession, batch: Batch) -> None:
        """Fill in `batch.outcomes`. After an error, what has no outcome was not done, or is undone."""
        self._beat_later()
        waiting = deque(self._cut(batch))
        while waiting:
            tasks = waiting.popleft()
            if self._settings.ordering == "key":
                batch.hold_behind_failures(tasks)
            if todo := [task for task in tasks if task.event.id not in batch.outcomes]:
                waiting.extendleft(reversed(self._run(session, batch, todo)))

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def _cut(self, batch: Batch) -> Iterator[Sequence[Task]]:
        """Runs of tasks of the same kind, sync or async, no longer than a transaction may be."""
        tasks = []
        for event in batch.events:
            handler = self._router.find(event.type, event.source)
            own = None if handler is None else handler.timeout
            tasks.append(Task(event, handler, own or self._settings.timeout))
        size = self._settings.transaction_size if self._settings.strategy.complete == "with" else 1
        for _, kin in groupby(tasks, key=_is_async):
            same = list(kin)
            for start in range(0, len(same), size):
                yield same[start : start + size]

    def _run(self, session: WorkerSession, batch: Batch, tasks: Sequence[Task]) -> list[Sequence[Task]]:
        """Run one job and note its outcomes. Answers the tasks to go on with; some may have an outcome by then."""
        self._savepoint_batches = max(self._savepoint_batches - 1, 0)
        savepoints = self._savepoint_batches > 0 or len(tasks) == 1
        job = Job(tasks, batch.token, session.statements, self._settings, _is_async(tasks[0]), savepoints)
        result = self._wait(session, batch, job)
        took = list(job.progress.took)
        self._tally.observe_many(metrics.INBOX_HANDLER_LATENCY, took, group=self._settings.group)
        match result:
            case list():
                batch.outcomes |= {t.event.id: outcome for t, outcome in zip(tasks, result, strict=False)}
                return [tasks[len(result) :]]
            case HandlerFailed(number, outcome):
                if number is not None:
                    batch.outcomes[tasks[number].event.id] = outcome
                self._savepoint_batches = SAVEPOINT_BATCHES
                return [tasks]
            case TransactionLost():
                self._note_loss(session, batch, tasks, result)
                # All of the transaction is undone. Alone, each task shows what it does.
                return [[task] for task in tasks] if len(tasks) > 1 else []
            case DatabaseUnavailable(error):
                raise error
            case _:
                assert_never(result)

    def _wait(self, session: WorkerSession, batch: Batch, job: Job) -> JobResult:
        if self._thread is None:
            self._thread = HandlerThread(self._session_options())
        self._thread.jobs.put(job)
        # The deadline moves as one handler follows another, so it is polled more often than it can be exceeded.
        poll = min(min(task.timeout.total_seconds() for task in job.tasks) / POLLS, LONGEST_POLL)
        while True:
            # A lane whose handler is within its time does not hang, however long that is.
            self._moved()
            try:
                return self._thread.results.get(
                    timeout=min(poll, max(self._next_beat - time.monotonic(), 0.0))
                )
            except Empty:
                number, deadline = job.progress.now
            if time.monotonic() >= deadline:
                return self._leave_behind(session, job, number)
            if time.monotonic() >= self._next_beat:
                self._beat(session, batch)

    def _note_loss(
        self, session: WorkerSession, batch: Batch, tasks: Sequence[Task], lost: TransactionLost
    ) -> None:
        """The outcome of the task at fault, if it is known. HandlerHung when too many handlers hang."""
        # When the database is gone for the worker, too, no event is at fault: then this raises.
        session.conn.execute("SELECT 1")
        # In order, the tasks before the one at fault must be done first; so it is found again, alone.
        if lost.number is not None and (len(tasks) == 1 or self._settings.ordering == "none"):
            batch.outcomes[tasks[lost.number].event.id] = lost.outcome
        if self._hung >= self._settings.max_hung:
            raise HandlerHung(
                f"{self._hung} handlers of worker {self._settings.name} hang, and threads cannot be ended; "
                "start its process again"
            )

    def _leave_behind(self, session: WorkerSession, job: Job, number: int | None) -> TransactionLost:
        """A thread cannot be ended, but its sessions can: nothing that it does from now on will stand."""
        assert self._thread is not None
        self._thread.jobs.put(None)
        self._thread = None
        if len(job.tasks) == 1:
            number = 0
        session.conn.execute(TERMINATE, {"pids": list(job.progress.pids)})
        self._hung += 1
        self._tally.add(metrics.INBOX_HUNG_TOTAL, group=self._settings.group)
        timeout = self._settings.timeout if number is None else job.tasks[number].timeout
        return TransactionLost(number, Retry(f"the handler took longer than {durations.text(timeout)}"))

    def _beat(self, session: WorkerSession, batch: Batch) -> None:
        """Refresh the locks of what is not decided. A row that is being completed at this moment needs no refresh."""
        self._beat_later()
        rest = batch.rest()
        named = {"ids": [event.id for event in rest], "created_ats": [event.created_at for event in rest]}
        try:
            session.rows(session.statements.heartbeat, {**named, "token": batch.token})
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            log.debug("locks were not refreshed: a row is being written", extra={"group": session.group})

    def _beat_later(self) -> None:
        self._next_beat = time.monotonic() + self._settings.lease.total_seconds() / 3

    def _session_options(self) -> SessionOptions:
        # A process that is stopped in the middle of a handler must not hold its locks for ever.
        longest = self._router.longest_timeout(self._settings.timeout).total_seconds() + IDLE_MARGIN
        guarded = SETTINGS if self._settings.strategy.complete == "with" else {}
        settings = {"idle_in_transaction_session_timeout": f"{int(longest * 1000)}ms", **guarded}
        return SessionOptions(self._url, f"outspark inbox {self._settings.name} handlers", settings)


def _is_async(task: Task) -> bool:
    return task.handler is not None and task.handler.is_async
