"""The script of handling, as steps that a sync or an async connection takes, so that both follow the same.

Under exactly-once a few events share a transaction; at the end one statement completes those that passed, and then all
is committed together. A handler that fails takes all with it, and the others run once more, carefully: with a savepoint
after each.

A cursor stands guard against a handler that commits by itself: it is declared WITH HOLD over a query that fails, and
PostgreSQL runs such a query when the transaction is committed. Only who closes the cursor first can commit. And whoever
rolls back finds that any other transaction of the session is read-only, which is its default then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from outspark.database.arrays import Texts, Times, Uuids
from outspark.inbox.event import InboxEvent
from outspark.inbox.handling.group import Group, HandlerFailed, Task, TransactionLost
from outspark.inbox.outcome import HANDLED, LOST, Handled, HandlingOutcome, outcome_of
from outspark.inbox.router import Handler
from outspark.outcome import HELD, Dead, Retry, Skipped
from outspark.redaction import storable

log = logging.getLogger(__name__)

# A setting that nobody has set is not known before the query runs, so the planner cannot fail too early.
BEGIN = """
-- Stand guard over the transaction, and go behind a savepoint
SET TRANSACTION READ WRITE;
DECLARE outspark_guard CURSOR WITH HOLD FOR
  SELECT coalesce(current_setting('outspark.no_such', true), 'a handler must not end the transaction')::int;
SAVEPOINT outspark_event"""
PASS = """
-- Keep what the handler did, and go behind the next savepoint
RELEASE SAVEPOINT outspark_event; SAVEPOINT outspark_event"""
UNDO = """
-- Undo what the handler did
ROLLBACK TO SAVEPOINT outspark_event"""
END = """
-- All handlers are through, and whoever commits now is us
CLOSE outspark_guard"""

SETTINGS: Final = {"default_transaction_read_only": "on"}
"""Of sessions in which only our own transactions may write."""

ENDED_BY_ITSELF = "the handler ended the transaction by itself; the worker commits when it returns"
LEFT_ABORTED = "the handler returned and left the transaction aborted; let the error out, or use a savepoint"

# What a handler may end with; all else ends the process.
_FAILURES = (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError)


@dataclass(frozen=True, slots=True)
class Run:
    """Run a statement; answers its rows."""

    statement: str
    parameters: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """Run PASS. It comes after every handler, so it is worth a shorter way than other statements take."""


@dataclass(frozen=True, slots=True)
class Call:
    """Call a handler, which may raise anything."""

    task: Task
    handler: Handler


@dataclass(frozen=True, slots=True)
class End:
    """Commit or roll back, outside a transaction of the whole group."""

    how: Literal["commit", "rollback"]


Step = Run | Keep | Call | End
A = TypeVar("A")
Script = Generator[Step, Any, A]


def shared_transaction(group: Group, conn: psycopg.BaseConnection[Any]) -> Script[list[HandlingOutcome]]:
    """The outcomes of the first so many tasks; the others are for another transaction."""
    outcomes: list[HandlingOutcome] = []
    stopped: set[str | None] = set()
    yield Run(BEGIN)
    for number, task in enumerate(group.tasks):
        if group.out_of_time():
            break
        key = task.event.key if group.ordered else None
        if key is not None and key in stopped:
            outcomes.append(HELD)
            continue
        group.begin(number)
        outcome = yield from _one_of_them(group, task, conn)
        outcomes.append(outcome)
        if not isinstance(outcome, Handled | Skipped):
            stopped.add(key)
    group.end()
    yield Run(END)
    yield from _complete(group, outcomes)
    return outcomes


def _one_of_them(group: Group, task: Task, conn: psycopg.BaseConnection[Any]) -> Script[HandlingOutcome]:
    outcome = yield from _call(group, task)
    if group.savepoints:
        _report(group, task)
    status = conn.info.transaction_status
    if status not in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        raise TransactionLost(group.number, _what_happened(conn, outcome))
    if status is TransactionStatus.INERROR and isinstance(outcome, Handled):
        outcome = Retry(LEFT_ABORTED)
    if group.savepoints:
        try:
            yield Keep() if isinstance(outcome, Handled | Skipped) else Run(UNDO)
        except psycopg.errors.InvalidSavepointSpecification as error:
            raise TransactionLost(group.number, Retry(ENDED_BY_ITSELF)) from error
    elif isinstance(outcome, Retry | Dead) and task.handler is not None:
        number = yield from _at_fault(group, task)
        if number is not None:
            _report(group, task)
        raise HandlerFailed(number, outcome)
    return outcome


def _at_fault(group: Group, task: Task) -> Script[int | None]:
    """Who failed; None where that shows only when they run again."""
    key, before = task.event.key, group.tasks[: group.number]
    if group.ordered and key is not None and any(one.event.key == key for one in before):
        return None
    try:
        yield Run(UNDO)
    except psycopg.Error:
        # A handler before it has ended the transaction, and left another in its place.
        return None
    return group.number


def _complete(group: Group, outcomes: Sequence[HandlingOutcome]) -> Script[None]:
    """Broken where a lock was lost meanwhile: what was done for that event must not stay."""
    passed = [
        (task.event, outcome.reason if isinstance(outcome, Skipped) else None)
        for task, outcome in zip(group.tasks, outcomes, strict=False)
        if isinstance(outcome, Handled | Skipped)
    ]
    if not passed:
        return
    rows = yield Run(group.statements.complete, _completion(group, passed))
    if len(rows) < len(passed):
        raise TransactionLost(group.at_fault(), LOST)


def own_transaction(group: Group, conn: psycopg.BaseConnection[Any]) -> Script[list[HandlingOutcome]]:
    """One handler that has the connection to itself: it may commit as it likes."""
    [task] = group.tasks
    named = _completion(group, [(task.event, None)])
    if group.complete == "before":
        rows = yield Run(group.statements.complete, named)
        yield End("commit")
        if not rows:
            return [LOST]
    group.begin(0)
    outcome = yield from _call(group, task)
    _report(group, task)
    if conn.info.transaction_status is TransactionStatus.INERROR and isinstance(outcome, Handled):
        outcome = Retry(LEFT_ABORTED)
    passed = isinstance(outcome, Handled | Skipped)
    try:
        yield End("commit" if passed else "rollback")
    except psycopg.Error as error:
        outcome, passed = outcome_of(error), False
    if conn.closed:
        raise TransactionLost(0, _what_happened(conn, outcome))
    if group.complete == "after" and passed:
        rows = yield Run(group.statements.complete, named)
        yield End("commit")
        return [outcome if rows else LOST]
    return [outcome]


def _call(group: Group, task: Task) -> Script[HandlingOutcome]:
    if task.handler is None:
        reason = f"there is no handler for {task.event.type} from {task.event.source}"
        return Skipped(reason) if group.unhandled == "skip" else Dead(reason)
    started, group.error = time.monotonic(), None
    try:
        yield Call(task, task.handler)
    except _FAILURES as error:
        group.error = error
        return outcome_of(error)
    finally:
        group.took.append(time.monotonic() - started)
    return HANDLED


def _report(group: Group, task: Task) -> None:
    """For whoever debugs a handler; the settler tells of all that failed in a batch."""
    if group.error is not None and task.handler is not None:
        named = {"event": task.event.id, "handler": task.handler.name}
        log.debug("handler failed", extra=named, exc_info=group.error)


def _completion(group: Group, passed: Sequence[tuple[InboxEvent, str | None]]) -> dict[str, Any]:
    return {
        "ids": Uuids([event.id for event, _ in passed]),
        "created_ats": Times([event.created_at for event, _ in passed]),
        "notes": Texts([None if note is None else storable(f"skipped: {note}") for _, note in passed]),
        "token": group.token,
    }


def _what_happened(conn: psycopg.BaseConnection[Any], outcome: HandlingOutcome) -> Retry:
    if not conn.closed:
        return Retry(ENDED_BY_ITSELF)
    error = outcome.error if isinstance(outcome, Retry | Dead) else "it returned"
    return Retry(storable(f"the connection was lost while the handler ran: {error}"))
