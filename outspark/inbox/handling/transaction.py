"""The script of a job: its statements and handler calls in order, as steps that a sync or an async connection performs.

Under exactly-once a few events share a transaction. At its end one statement completes the events whose handlers
succeeded, and one commit makes all of it stand. A handler that fails undoes the whole transaction; then the others run
again, each behind a savepoint of its own.

The guard cursor keeps a handler from committing by itself. It is declared WITH HOLD over a query that fails, and
PostgreSQL runs such a query at commit. A commit succeeds only after the guard cursor is closed. A handler that rolls
back and opens its own transaction gets a read-only one (`default_transaction_read_only = on`).
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from outspark.database.arrays import Texts, Times, Uuids
from outspark.inbox.event import InboxEvent
from outspark.inbox.handling.batch import HandlerFailed, Job, JobResult, Task, TransactionLost
from outspark.inbox.outcome import HANDLED, LOST, Handled, HandlingOutcome, outcome_of
from outspark.inbox.router import Handler
from outspark.outcome import HELD, Dead, Retry, Skipped
from outspark.redaction import storable

log = logging.getLogger(__name__)

# The planner does not know the value of a setting that was never set, so the cast cannot fail before the query runs.
BEGIN = """
-- Declare the guard cursor, and set the savepoint of the first handler
SET TRANSACTION READ WRITE;
DECLARE outspark_guard CURSOR WITH HOLD FOR
  SELECT coalesce(current_setting('outspark.no_such', true), 'a handler must not end the transaction')::int;
SAVEPOINT outspark_event"""
PASS = """
-- Keep what the handler did, and set the savepoint of the next one
RELEASE SAVEPOINT outspark_event; SAVEPOINT outspark_event"""
UNDO = """
-- Undo what the handler did
ROLLBACK TO SAVEPOINT outspark_event"""
END = """
-- All handlers have returned: from here on a commit succeeds
CLOSE outspark_guard"""

SETTINGS: Final = {"default_transaction_read_only": "on"}
"""Of sessions in which only the worker's own transactions may write."""

ENDED_BY_ITSELF = "the handler ended the transaction by itself; the worker commits when it returns"
LEFT_ABORTED = "the handler returned and left the transaction aborted; let the error out, or use a savepoint"


@dataclass(frozen=True, slots=True)
class Run:
    """Run a statement; answers its rows."""

    statement: str
    parameters: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """Run PASS. It follows every handler that has a savepoint, so it takes a shorter way than other statements."""


@dataclass(frozen=True, slots=True)
class Call:
    """Call a handler; answers what it raised, or None."""

    task: Task
    handler: Handler


@dataclass(frozen=True, slots=True)
class End:
    """Commit or roll back, where a handler has the connection to itself."""

    how: Literal["commit", "rollback"]


Step = Run | Keep | Call | End
A = TypeVar("A")
Script = Generator[Step, Any, A]

KEEP: Final = Keep()


def shared_transaction(job: Job, conn: psycopg.BaseConnection[Any]) -> Script[JobResult]:
    """Handle tasks in one transaction until it has lasted long enough. Only a list may be committed."""
    outcomes: list[HandlingOutcome] = []
    stopped: set[str | None] = set()
    ordered, info = job.settings.ordering == "key", conn.info
    yield Run(BEGIN)
    for number, task in enumerate(job.tasks):
        if job.progress.out_of_time():
            break
        if ordered and task.event.key in stopped:
            outcomes.append(HELD)
            continue
        job.progress.begin(number, task)
        if task.handler is not None:
            error = yield Call(task, task.handler)
            job.progress.returned(error)
            # Of most events nothing more is to be found out, so this is asked first.
            if error is None and not job.savepoints and info.transaction_status == TransactionStatus.INTRANS:
                outcomes.append(HANDLED)
                continue
        outcome = yield from _judge(job, number, conn)
        if isinstance(outcome, TransactionLost | HandlerFailed):
            return outcome
        outcomes.append(outcome)
        if task.event.key is not None and not isinstance(outcome, Handled | Skipped):
            stopped.add(task.event.key)
    job.progress.end()
    yield Run(END)
    lost = yield from _complete(job, outcomes)
    return outcomes if lost is None else lost


def _judge(
    job: Job, number: int, conn: psycopg.BaseConnection[Any]
) -> Script[HandlingOutcome | TransactionLost | HandlerFailed]:
    """The outcome of the task that was just done, and what it means for the transaction."""
    task = job.tasks[number]
    outcome = _outcome(job, task)
    if job.savepoints:
        _report(job, task)
    status = conn.info.transaction_status
    if status not in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        return TransactionLost(number, _what_happened(conn, outcome))
    if status is TransactionStatus.INERROR and isinstance(outcome, Handled):
        outcome = Retry(LEFT_ABORTED)
    if job.savepoints:
        try:
            yield KEEP if isinstance(outcome, Handled | Skipped) else Run(UNDO)
        except psycopg.errors.InvalidSavepointSpecification:
            return TransactionLost(number, Retry(ENDED_BY_ITSELF))
    elif isinstance(outcome, Retry | Dead) and task.handler is not None:
        at_fault = yield from _at_fault(job, number)
        if at_fault is not None:
            _report(job, task)
        return HandlerFailed(at_fault, outcome)
    return outcome


def _at_fault(job: Job, number: int) -> Script[int | None]:
    """The task that failed; None where that shows only when the tasks run again."""
    key, before = job.tasks[number].event.key, job.tasks[:number]
    if job.settings.ordering == "key" and key is not None and any(one.event.key == key for one in before):
        return None
    try:
        yield Run(UNDO)
    except psycopg.Error:
        # An earlier handler has ended the transaction and left another in its place.
        return None
    return number


def _complete(job: Job, outcomes: Sequence[HandlingOutcome]) -> Script[TransactionLost | None]:
    """TransactionLost when another worker has taken an event meanwhile: what was done for it must not stand."""
    succeeded = [
        (task.event, outcome.reason if isinstance(outcome, Skipped) else None)
        for task, outcome in zip(job.tasks, outcomes, strict=False)
        if isinstance(outcome, Handled | Skipped)
    ]
    if not succeeded:
        return None
    rows = yield Run(job.statements.complete, _completion(job, succeeded))
    return None if len(rows) == len(succeeded) else job.lost(LOST)


def own_transaction(job: Job, conn: psycopg.BaseConnection[Any]) -> Script[JobResult]:
    """One handler that has the connection to itself: it may commit when it likes."""
    [task] = job.tasks
    complete = Run(job.statements.complete, _completion(job, [(task.event, None)]))
    if job.settings.strategy.complete == "before":
        rows = yield complete
        yield End("commit")
        if not rows:
            return [LOST]
    job.progress.begin(0, task)
    if task.handler is not None:
        job.progress.returned((yield Call(task, task.handler)))
    outcome = _outcome(job, task)
    _report(job, task)
    if conn.info.transaction_status is TransactionStatus.INERROR and isinstance(outcome, Handled):
        outcome = Retry(LEFT_ABORTED)
    try:
        yield End("commit" if isinstance(outcome, Handled | Skipped) else "rollback")
    except psycopg.Error as error:
        outcome = outcome_of(error)
    if conn.closed:
        return TransactionLost(0, _what_happened(conn, outcome))
    if job.settings.strategy.complete == "after" and isinstance(outcome, Handled | Skipped):
        rows = yield complete
        yield End("commit")
        return [outcome if rows else LOST]
    return [outcome]


def _outcome(job: Job, task: Task) -> HandlingOutcome:
    if task.handler is None:
        reason = f"there is no handler for {task.event.type} from {task.event.source}"
        return Skipped(reason) if job.settings.unhandled == "skip" else Dead(reason)
    error = job.progress.error
    return HANDLED if error is None else outcome_of(error)


def _report(job: Job, task: Task) -> None:
    """The traceback of one failure, for debugging; the settler logs one line for all failures of a batch."""
    error = job.progress.error
    if error is not None and task.handler is not None:
        named = {"event": task.event.id, "handler": task.handler.name}
        log.debug("handler failed", extra=named, exc_info=error)


def _completion(job: Job, succeeded: Sequence[tuple[InboxEvent, str | None]]) -> dict[str, Any]:
    return {
        "ids": Uuids([event.id for event, _ in succeeded]),
        "created_ats": Times([event.created_at for event, _ in succeeded]),
        "notes": Texts([None if note is None else storable(f"skipped: {note}") for _, note in succeeded]),
        "token": job.token,
    }


def _what_happened(conn: psycopg.BaseConnection[Any], outcome: HandlingOutcome) -> Retry:
    if not conn.closed:
        return Retry(ENDED_BY_ITSELF)
    error = outcome.error if isinstance(outcome, Retry | Dead) else "it returned"
    return Retry(storable(f"the connection was lost while the handler ran: {error}"))
