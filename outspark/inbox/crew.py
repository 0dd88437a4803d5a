"""Runs the handlers of a claimed batch: group by group in another thread, watched, and alone where a group broke.

A savepoint for each handler costs more than half of what a short handler does. So there are none until one fails; then
the others of its group run again with savepoints, and so do the next ones, because failures seldom come alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import psycopg

from outspark import durations, metrics
from outspark.errors import HandlerHung
from outspark.inbox.event import InboxEvent
from outspark.inbox.group import Broken, Disturbed, Group, Task, Unable
from outspark.inbox.hand import TERMINATE, Hand
from outspark.inbox.handling import SETTINGS
from outspark.inbox.outcome import Handled, HandlingOutcome
from outspark.inbox.place import Place
from outspark.inbox.router import Router
from outspark.inbox.settling import Batch
from outspark.metrics import Tally
from outspark.outcome import HELD, Held, Retry, Skipped
from outspark.settings.inbox import WorkSettings

log = logging.getLogger(__name__)

IDLE_MARGIN = 5.0
LOOKS = 10
LONGEST_LOOK = 1.0
WARY = 20
"""Groups with savepoints after a failure."""


class Crew:
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
        self._hand: Hand | None = None
        self._hung = 0
        self._wary = 0
        self._next_beat = 0.0

    def handle(self, place: Place, batch: Batch) -> None:
        """Fill in `batch.outcomes`. After an error, what has no outcome was not done, or is undone."""
        self._beat_later()
        for tasks in self._groups([self._task(event) for event in batch.events]):
            while todo := self._still_to_do(batch, tasks):
                if not self._do(place, batch, todo):
                    # All that was in the transaction is undone. Alone, each shows what it does.
                    for task in todo:
                        self._do(place, batch, self._still_to_do(batch, [task]))
                    break

    def close(self) -> None:
        if self._hand is not None:
            self._hand.close()
            self._hand = None

    def _task(self, event: InboxEvent) -> Task:
        handler = self._router.find(event.type, event.source)
        own = None if handler is None else handler.timeout
        return Task(event, handler, own or self._settings.timeout)

    def _groups(self, tasks: Sequence[Task]) -> Iterator[list[Task]]:
        """Runs of tasks of the same kind, no longer than a transaction may be."""
        size = self._settings.transaction_size if self._settings.strategy.complete == "with" else 1
        for _, run in groupby(tasks, key=lambda task: task.handler is not None and task.handler.is_async):
            same = list(run)
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

    def _do(self, place: Place, batch: Batch, tasks: Sequence[Task]) -> bool:
        """Run one group. False when it broke: only the one at fault has an outcome then, if anybody knows who."""
        if not tasks:
            return True
        self._wary = max(self._wary - 1, 0)
        group = Group(
            tasks=tasks,
            token=batch.token,
            statements=place.statements,
            complete=self._settings.strategy.complete,
            ordered=self._settings.ordering == "key",
            unhandled=self._settings.unhandled,
            careful=self._wary > 0 or len(tasks) == 1,
        )
        result = self._run(place, batch, group)
        self._tally.observe_many(metrics.INBOX_HANDLER_LATENCY, group.took, group=self._settings.group)
        if isinstance(result, Unable):
            raise result.error
        if not isinstance(result, Broken):
            batch.outcomes |= {t.event.id: outcome for t, outcome in zip(tasks, result, strict=False)}
            return True
        if isinstance(result, Disturbed):
            if result.number is not None:
                batch.outcomes[tasks[result.number].event.id] = result.outcome
            self._wary = WARY
            return self._do(place, batch, self._still_to_do(batch, tasks))
        # When the database is gone for all of us, no event is at fault: then this raises.
        place.conn.execute("SELECT 1")
        # In order, what stands before the one at fault has to be through first; so it is found again, alone.
        if result.number is not None and (len(tasks) == 1 or self._settings.ordering == "none"):
            batch.outcomes[tasks[result.number].event.id] = result.outcome
        if self._hung >= self._settings.max_hung:
            raise HandlerHung(
                f"{self._hung} handlers of worker {self._settings.name} hang, and threads cannot be ended; "
                "start its process again"
            )
        return False

    def _run(self, place: Place, batch: Batch, group: Group) -> list[HandlingOutcome] | Broken | Unable:
        if self._hand is None:
            self._hand = Hand(
                self._url, f"outspark inbox {self._settings.name} handlers", self._hand_settings()
            )
        self._hand.begin(group)
        # The deadline moves as one handler follows another, so it is looked at more often than it can pass.
        look = min(min(task.timeout.total_seconds() for task in group.tasks) / LOOKS, LONGEST_LOOK)
        self._move()
        while not group.done.wait(min(look, max(self._next_beat - time.monotonic(), 0.0))):
            if time.monotonic() >= group.deadline:
                return self._leave_behind(place, group)
            # A handler within its time is no lane that hangs, however long that is.
            self._move()
            if time.monotonic() >= self._next_beat:
                self._beat(place, batch)
        assert group.result is not None
        return group.result

    def _move(self) -> None:
        if self._moved is not None:
            self._moved()

    def _leave_behind(self, place: Place, group: Group) -> Broken:
        """The thread cannot be ended, but its session can: nothing it does from now on will stand."""
        assert self._hand is not None
        hand, self._hand = self._hand, None
        number = group.at_fault()
        place.conn.execute(TERMINATE, {"pids": hand.leave()})
        self._hung += 1
        self._tally.add(metrics.INBOX_HUNG_TOTAL, group=self._settings.group)
        timeout = self._settings.timeout if number is None else group.tasks[number].timeout
        return Broken(number, Retry(f"the handler took longer than {durations.text(timeout)}"))

    def _beat(self, place: Place, batch: Batch) -> None:
        """Say that we are still at it. A row that is being completed at this moment needs no word."""
        self._beat_later()
        rest = batch.rest()
        named = {"ids": [event.id for event in rest], "created_ats": [event.created_at for event in rest]}
        try:
            place.rows(place.statements.heartbeat, {**named, "token": batch.token})
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            log.debug("locks were not refreshed: a row is being written", extra={"group": place.group})

    def _beat_later(self) -> None:
        self._next_beat = time.monotonic() + self._settings.lease.total_seconds() / 3

    def _hand_settings(self) -> dict[str, str]:
        # A process that was stopped in the middle of a handler must not hold its locks for ever.
        longest = self._router.longest_timeout(self._settings.timeout).total_seconds() + IDLE_MARGIN
        guarded = SETTINGS if self._settings.strategy.complete == "with" else {}
        return {"idle_in_transaction_session_timeout": f"{int(longest * 1000)}ms", **guarded}
