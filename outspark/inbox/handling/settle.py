"""Settles a batch: writes the outcomes of events that their handlers' transaction did not complete.

Events go back to be handled again, after a wait or immediately, or they are dead. Logs and metrics tell of both.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, assert_never

import psycopg

from outspark import backoff
from outspark.config.inbox import WorkSettings
from outspark.contracts.omnibox.inbox_guard import PAUSED
from outspark.inbox.event import InboxEvent
from outspark.inbox.handling.batch import Batch
from outspark.inbox.handling.guard import Guard, Pause
from outspark.inbox.handling.session import KeyOrder, WorkerSession
from outspark.inbox.outcome import Handled, HandlingOutcome, Lost
from outspark.observability import metrics
from outspark.observability.metrics import Tally
from outspark.outcome import Dead, Held, Retry, Skipped

log = logging.getLogger(__name__)

LOGGED_IDS = 5
"""In a line about events that are dead, or failed."""

OnDead = Callable[[psycopg.Connection[Any], InboxEvent, str], None]
"""Called in the transaction that makes an event dead, to write a dead letter: into a table, or into an outbox."""


@dataclass(frozen=True, slots=True)
class Settlement:
    event: InboxEvent
    state: Literal["pending", "dead"]
    counted: bool = False
    wait: timedelta | None = None
    error: str | None = None
    pause: Pause | None = None
    """The pause of its handler, if the event waits for its end."""


@dataclass(frozen=True, slots=True)
class Settler:
    settings: WorkSettings
    tally: Tally
    guard: Guard
    on_dead: OnDead | None = None

    def settle(self, session: WorkerSession, batch: Batch) -> None:
        """Events without an outcome go back as they came. A batch that is settled stays as it is."""
        if batch.settled or not batch.events:
            return
        self.guard.learn(batch)
        decided = [(event, batch.outcome(event)) for event in batch.events]
        settlements = list(self._settlements(decided))
        settled: dict[str, Settlement] = {}
        if settlements:
            with session.conn.transaction():
                settled = self._write(session, batch.token, settlements)
                self._mark_dead(session, settled.values())
        if session.order is not None:
            _update_key_order(session.order, decided, settled)
        self.guard.settled(session, batch)
        batch.settled = True
        self._log_failed(settled.values())
        paused = {one.event.id for one in settlements if one.pause is not None}
        words = Counter(
            "held" if event.id in paused else type(outcome).__name__.lower() for event, outcome in decided
        )
        for status, count in words.items():
            self.tally.add(metrics.INBOX_EVENTS_TOTAL, count, group=session.group, status=status)

    def given_back(self, session: WorkerSession, events: Iterable[tuple[InboxEvent, bool]]) -> None:
        """In the transaction that took events from other workers: those that it made dead get their letter."""
        error = "its workers vanished or stopped refreshing its lock, attempt after attempt"
        self._mark_dead(session, [Settlement(event, "dead", error=error) for event, dead in events if dead])

    def _settlements(self, decided: Sequence[tuple[InboxEvent, HandlingOutcome]]) -> Iterator[Settlement]:
        for event, outcome in decided:
            # Completed in its handler's transaction, as most events are.
            if not isinstance(outcome, Handled | Skipped) and (one := self._settlement(event, outcome)):
                yield one

    def _settlement(self, event: InboxEvent, outcome: Retry | Dead | Held | Lost) -> Settlement | None:
        pause = self.guard.pause_of(event, outcome)
        if pause is not None and isinstance(outcome, Retry | Dead):
            error = f"{PAUSED}{outcome.error}"
            return Settlement(event, "pending", wait=pause.wait, error=error, pause=pause)
        match outcome:
            case Lost():
                log.warning(
                    "the lock was lost while the handler ran",
                    extra={"group": event.group, "event": event.id},
                )
                return None
            case Held():
                return Settlement(event, "pending", pause=pause)
            case Dead(error):
                return Settlement(event, "dead", counted=True, error=error)
            case Retry(error) if self.settings.strategy.complete == "before":
                return Settlement(event, "dead", counted=True, error=error)
            case Retry(error, counted=False):
                return Settlement(event, "pending", wait=outcome.after or self._backoff(1), error=error)
            case Retry(error):
                return self._retry(event, error, outcome.after)
            case _:
                assert_never(outcome)

    def _retry(self, event: InboxEvent, error: str, after: timedelta | None) -> Settlement:
        failures = event.attempts + 1
        if failures >= event.max_attempts:
            reason = f"gave up after {failures} attempts: {error}"
            return Settlement(event, "dead", counted=True, error=reason)
        return Settlement(event, "pending", counted=True, wait=after or self._backoff(failures), error=error)

    def _backoff(self, failures: int) -> timedelta:
        policy = self.settings.retry
        return backoff.delay(failures, base=policy.base_delay, cap=policy.max_delay, jitter=policy.jitter)

    def _write(
        self, session: WorkerSession, token: str, settlements: Sequence[Settlement]
    ) -> dict[str, Settlement]:
        """What was really settled, by id, and its state now: a row may have changed since the claim."""
        rows = session.rows(session.statements.settle, _parameters(session, token, settlements))
        if self.settings.strategy.complete == "before":
            for one in settlements:
                if one.state == "dead" and one.event.id not in dict(rows):
                    named = {"id": one.event.id, "created_at": one.event.created_at, "error": one.error}
                    rows += session.rows(session.statements.fail_completed, named)
        dead: dict[str, bool] = dict(rows)
        return {
            one.event.id: replace(one, state="dead" if dead[one.event.id] else "pending")
            for one in settlements
            if one.event.id in dead
        }

    def _mark_dead(self, session: WorkerSession, settlements: Iterable[Settlement]) -> None:
        dead = [one for one in settlements if one.state == "dead"]
        if dead:
            named = {"events": [one.event.id for one in dead[:LOGGED_IDS]], "error": dead[0].error}
            log.error("events are dead", extra={"group": session.group, "count": len(dead), **named})
        for one in dead:
            if self.on_dead is not None:
                self.on_dead(session.conn, one.event, one.error or "")

    def _log_failed(self, settlements: Iterable[Settlement]) -> None:
        """One line for each handler, however many events failed; a pause logs a line of its own."""
        by_handler: dict[str, list[Settlement]] = {}
        for one in settlements:
            if one.state == "pending" and one.error is not None and one.pause is None:
                by_handler.setdefault(self.guard.handler(one.event)[0], []).append(one)
        for handler, failed in by_handler.items():
            named = {"events": [one.event.id for one in failed[:LOGGED_IDS]], "error": failed[0].error}
            log.warning("handler failed", extra={"handler": handler, "count": len(failed), **named})


def _update_key_order(
    order: KeyOrder,
    decided: Sequence[tuple[InboxEvent, HandlingOutcome]],
    settled: Mapping[str, Settlement],
) -> None:
    """Which keys wait for their first event from now on, and which do not any more."""
    # A key waits for the first of its events that stays: no later one may take its place.
    waiting: set[str | None] = {None}
    for event, outcome in decided:
        one = settled.get(event.id)
        if isinstance(outcome, Handled | Skipped) or (one is not None and one.state == "dead"):
            order.free(event)
            continue
        if one is None:
            order.doubt(event)
        elif one.pause is not None:
            if event.key is not None and event.key not in waiting:
                order.wait_for_handler(event)
                one.pause.keys[event.key] = event.attempts > 0
        elif one.wait is not None:
            order.wait(event, one.wait.total_seconds())
        waiting.add(event.key)


def _parameters(session: WorkerSession, token: str, settlements: Sequence[Settlement]) -> dict[str, Any]:
    return {
        "ids": [one.event.id for one in settlements],
        "created_ats": [one.event.created_at for one in settlements],
        "states": [one.state for one in settlements],
        "counts": [int(one.counted) for one in settlements],
        "waits": [_wait(session, one) for one in settlements],
        "errors": [one.error for one in settlements],
        "token": token,
    }


def _wait(session: WorkerSession, one: Settlement) -> float | None:
    # With order per key, an event that was never tried is found by its position in the queue alone and keeps it: this
    # worker remembers the wait, and the next owner of its key tries it immediately.
    if one.wait is None or (session.order is not None and not one.counted and one.event.attempts == 0):
        return None
    return one.wait.total_seconds()
