"""Events whose handlers run one after the other in one hand, and who is to blame when that breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

import psycopg

from outspark.contracts.omnibox.inbox import WorkStatements
from outspark.inbox.event import InboxEvent
from outspark.inbox.outcome import HandlingOutcome, Lost, outcome_of
from outspark.inbox.router import Handler
from outspark.outcome import Dead, Retry

_MARGIN = 1.0
_LONG = 0.1
_LONGEST_COMMIT = 60.0


@dataclass(frozen=True, slots=True)
class Task:
    event: InboxEvent
    handler: Handler | None
    timeout: timedelta


class TransactionLost(Exception):
    """The transaction is lost, with all that was in it. `number` is the task at fault, None when nobody knows."""

    def __init__(self, number: int | None, outcome: Retry | Dead | Lost) -> None:
        super().__init__(number, outcome)
        self.number, self.outcome = number, outcome


class HandlerFailed(TransactionLost):
    """A handler failed, and there is no savepoint to go back to."""


class DatabaseUnavailable(Exception):
    """The database failed before a handler was called, so no event is at fault."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(error)
        self.error = error


@dataclass(slots=True)
class Group:
    """Tasks that are done one after the other; under exactly-once, all in one transaction."""

    tasks: Sequence[Task]
    token: str
    statements: WorkStatements
    complete: Literal["before", "with", "after"] = "with"
    ordered: bool = False
    unhandled: Literal["dead", "skip"] = "dead"
    savepoints: bool = True
    """Has each its own savepoint? Otherwise one that fails disturbs the others."""
    number: int | None = None
    """The task that is being done; None before the first and after the last."""
    begun: bool = False
    until: float = 0.0
    """When it has had enough of them for one transaction."""
    error: BaseException | None = None
    """What the last handler failed with."""
    deadline: float = field(default_factory=lambda: time.monotonic() + _LONGEST_COMMIT)
    took: list[float] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    result: list[HandlingOutcome] | TransactionLost | DatabaseUnavailable | None = None
    """There once it is done."""
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_async = any(task.handler is not None and task.handler.is_async for task in self.tasks)

    def begin(self, number: int) -> None:
        # A hung async handler is cancelled first; only if that does not help is its thread left behind.
        margin = _MARGIN if self.is_async else 0.0
        now = time.monotonic()
        self.deadline = now + self.tasks[number].timeout.total_seconds() + margin
        self.number = number
        if not self.begun:
            self.begun, self.until = True, now + _LONG

    def out_of_time(self) -> bool:
        """Slow handlers must not hold each other's locks for long."""
        return self.begun and time.monotonic() >= self.until

    def end(self) -> None:
        self.deadline = time.monotonic() + _LONGEST_COMMIT
        self.number = None

    def at_fault(self) -> int | None:
        """Who is to blame when something breaks now."""
        return 0 if len(self.tasks) == 1 else self.number

    def broke(self, error: psycopg.Error) -> TransactionLost | DatabaseUnavailable:
        """A statement of ours failed, or the commit did: whose fault that is shows when they run alone."""
        if not self.begun and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return DatabaseUnavailable(error)
        return TransactionLost(self.at_fault(), outcome_of(error))
