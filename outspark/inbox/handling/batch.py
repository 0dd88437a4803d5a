"""A claimed batch, the jobs that it is cut into, and all that the worker's thread and a handler thread tell each other.

Three things cross between the two threads. A `Job` goes in and never changes. Its `Progress` is written by the handler
thread while the job runs and only read by the worker's thread. A `JobResult` comes out. Jobs and results go through
queues, so all that one thread wrote before it put them there is seen by the other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg

from outspark.config.inbox import WorkSettings
from outspark.contracts.omnibox.inbox import WorkStatements
from outspark.inbox.event import InboxEvent
from outspark.inbox.outcome import Handled, HandlingOutcome, Lost, outcome_of
from outspark.inbox.router import Handler
from outspark.outcome import HELD, Dead, Held, Retry, Skipped

if TYPE_CHECKING:
    from outspark.inbox.handling.guard import Pause

_CANCEL_MARGIN = 1.0
_LONG_TRANSACTION = 0.1
_LONGEST_COMMIT = 60.0


@dataclass(slots=True)
class Batch:
    """Claimed events under one token, and their outcomes so far. The worker's thread alone uses it."""

    events: list[InboxEvent]
    token: str
    outcomes: dict[str, HandlingOutcome] = field(default_factory=dict)
    probes: Pause | None = None
    """The pause that this batch tests: it ends when an event of the batch succeeds."""
    learned: bool = False
    """Has the guard seen the outcomes?"""
    settled: bool = False

    def outcome(self, event: InboxEvent) -> HandlingOutcome:
        """Held where nothing was decided: the event goes back as it came."""
        return self.outcomes.get(event.id, HELD)

    def rest(self) -> list[InboxEvent]:
        return [event for event in self.events if event.id not in self.outcomes]

    def hold_behind_failures(self, tasks: Sequence[Task]) -> None:
        """With order per key: what follows a failed event of its key is held."""
        sound = (Handled, Skipped, Held)
        failed = {event.key for event in self.events if not isinstance(self.outcome(event), sound)} - {None}
        for task in tasks:
            if task.event.key in failed:
                self.outcomes.setdefault(task.event.id, HELD)


@dataclass(frozen=True, slots=True)
class Task:
    """One event and its handler, if it has one."""

    event: InboxEvent
    handler: Handler | None
    timeout: timedelta

    def longest(self) -> float:
        """Seconds after which the handler hangs. An async one is cancelled first, and only left if that fails."""
        margin = _CANCEL_MARGIN if self.handler is not None and self.handler.is_async else 0.0
        return self.timeout.total_seconds() + margin


@dataclass(slots=True)
class Progress:
    """How far a handler thread is with its job. That thread alone writes; the worker's thread reads without a lock.

    - `now` and `pids` are replaced as a whole, never changed, and CPython stores a reference atomically. So the reader
      never sees the number of one handler with the deadline of another. What it reads may be replaced a moment later;
      then the deadline that it saw was exceeded nevertheless, and the blame is right.
    - `took` only grows. The reader reads it after the result came out, or copies it when it leaves the thread behind.
    - `error` and what begins with an underscore are read by the handler thread alone.
    """

    now: tuple[int | None, float] = field(default_factory=lambda: (None, time.monotonic() + _LONGEST_COMMIT))
    """The task whose handler runs, None before the first and after the last, and when the thread hangs."""
    pids: tuple[int, ...] = ()
    """The sessions that the thread has open, to be ended if it hangs."""
    took: list[float] = field(default_factory=list)
    error: BaseException | None = None
    """What the last handler raised."""
    _since: float = 0.0
    _until: float | None = None
    """When the transaction has lasted long enough; None until the first handler is called."""

    @property
    def begun(self) -> bool:
        return self._until is not None

    def begin(self, number: int, task: Task) -> None:
        now = self._since = time.monotonic()
        self.now = number, now + task.longest()
        if self._until is None:
            self._until = now + _LONG_TRANSACTION

    def returned(self, error: BaseException | None) -> None:
        self.error = error
        self.took.append(time.monotonic() - self._since)

    def end(self) -> None:
        self.now = None, time.monotonic() + _LONGEST_COMMIT

    def out_of_time(self) -> bool:
        """Slow handlers must not hold each other's locks for long."""
        return self._until is not None and time.monotonic() >= self._until


@dataclass(frozen=True, slots=True)
class Job:
    """Tasks that a handler thread does one after the other; under exactly-once, all in one transaction."""

    tasks: Sequence[Task]
    token: str
    statements: WorkStatements
    settings: WorkSettings
    is_async: bool
    savepoints: bool
    """Has each task its own savepoint? Without, one that fails undoes the others."""
    progress: Progress = field(default_factory=Progress)

    def lost(self, outcome: Retry | Dead | Lost) -> TransactionLost:
        """The transaction is lost at this moment: the task that runs is at fault, or the only one."""
        return TransactionLost(0 if len(self.tasks) == 1 else self.progress.now[0], outcome)

    def broke(self, error: BaseException) -> TransactionLost | DatabaseUnavailable:
        """A statement of the worker or the commit failed. Which task is at fault shows when each runs alone."""
        if not self.progress.begun and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return DatabaseUnavailable(error)
        return self.lost(outcome_of(error))


@dataclass(frozen=True, slots=True)
class TransactionLost:
    """All that was done in the transaction is undone. `number` is the task at fault, None if it is not known."""

    number: int | None
    outcome: Retry | Dead | Lost


@dataclass(frozen=True, slots=True)
class HandlerFailed:
    """A handler failed and there was no savepoint to go back to, so the whole transaction is undone."""

    number: int | None
    outcome: Retry | Dead


@dataclass(frozen=True, slots=True)
class DatabaseUnavailable:
    """The database failed before a handler was called, so no event is at fault."""

    error: psycopg.Error


JobResult = list[HandlingOutcome] | TransactionLost | HandlerFailed | DatabaseUnavailable
"""The outcomes are those of the first tasks; the others, if any, are for another job."""
