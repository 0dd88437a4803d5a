"""The handling loop of one worker: claim a batch, run its handlers, settle it; adopt what other workers left."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

import psycopg

from outspark.config.inbox import WorkSettings
from outspark.database.names import TableName
from outspark.hosting.shift import Stopping
from outspark.inbox.event import InboxEvent
from outspark.inbox.handling.batch import Batch
from outspark.inbox.handling.guard import Guard, Pause, Records
from outspark.inbox.handling.runner import HandlerRunner
from outspark.inbox.handling.session import WorkerSession, open_worker_session
from outspark.inbox.handling.settle import OnDead, Settler
from outspark.inbox.router import Router
from outspark.observability import metrics
from outspark.observability.causes import Causes, Trouble
from outspark.observability.metrics import Tally

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
GIVE_BACK_LIMIT = 1000
PROBED_KEYS = 10


class Worker:
    """Handles the events of one consumer group. For one thread alone; start another worker for more.

    `run_once` claims and handles one batch; `run` does so until it is told to stop. The worker's own statements have
    one connection, its handlers another. `records` is what the previous worker of this process found out about
    handlers; `on_dead` is called for each event that dies, in the transaction that makes it dead.
    """

    def __init__(
        self,
        url: str,
        table: str | TableName,
        router: Router,
        settings: WorkSettings,
        *,
        tally: Tally | None = None,
        on_dead: OnDead | None = None,
        causes: Causes | Trouble | None = None,
        records: Records | None = None,
        moved: Callable[[], None] | None = None,
    ) -> None:
        self.url = url
        self.table = table if isinstance(table, TableName) else TableName.parse(table)
        self.settings = settings
        self.tally = tally or Tally()
        self._causes = Causes() if causes is None else causes
        self.guard = Guard(settings, router, self._causes, {} if records is None else records)
        self._settler = Settler(settings, self.tally, self.guard, on_dead)
        self._runner = HandlerRunner(url, router, settings, self.tally, moved)
        self._session: WorkerSession | None = None
        self._batch = Batch([], "")
        self._next_chores = 0.0
        self._heads_first = False

    def run_once(self) -> int:
        """Claim a batch and handle it; answers the number of its events. Errors of the database are raised.

        HandlerHung when too many handlers of this process hang: then the process should end and be started again.
        """
        if self._session is None:
            self._session = open_worker_session(self.url, self.table, self.settings)
            self._next_chores = 0.0
            self.guard.sync_soon()
        session = self._session
        try:
            # The last batch, if the last call could not settle it.
            self._settler.settle(session, self._batch)
            self._chores(session)
            self.guard.sync_when_due(session)
            batch = self._batch = self._claim(session)
            if batch.events:
                self.guard.hold(batch, ordered=session.order is not None)
                try:
                    self._runner.handle(session, batch)
                finally:
                    if not session.conn.broken:
                        self._settler.settle(session, batch)
            return len(batch.events)
        except psycopg.OperationalError:
            self._disconnect()
            raise

    def run(self, stopping: Stopping) -> None:
        """Handle batches until told to stop. When the database is lost, try again after a pause."""
        pause = FIRST_PAUSE
        failing = f"inbox worker failed; trying again: {self.settings.group}"
        while not stopping.is_set():
            try:
                worked = self.run_once() > 0
                pause = FIRST_PAUSE
                self._causes.clear(failing)
                wait = 0.0 if worked else self.idle_for()
            except psycopg.Error as error:
                self._causes.raise_(failing, " ".join(str(error).split()) or type(error).__name__)
                wait, pause = pause, min(pause * 2, LONGEST_PAUSE)
            if wait:
                stopping.wait(wait)

    def idle_for(self) -> float:
        """Seconds that a host may sleep after `run_once` found nothing."""
        longest = self.settings.poll_interval.total_seconds()
        if self._session is None:
            return longest
        [(due,)] = self._session.rows(self._session.statements.next_due, {"group": self.settings.group})
        waits = [longest] if due is None else [longest, max(due, 0.0)]
        head = self._session.order.next_due() if self._session.order is not None else None
        later = [at for at in (head, self.guard.next_probe()) if at is not None]
        return min([*waits, *(max(at - time.monotonic(), 0.0) for at in later)])

    def close(self) -> None:
        """Harmless when the worker is closed."""
        self._runner.close()
        self._disconnect()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _claim(self, session: WorkerSession) -> Batch:
        token = session.token()
        given: dict[str, Any] = {"group": self.settings.group, "token": token}
        probe = self.guard.due()
        if probe is not None:
            if tried := self._claim_probe(session, given, probe):
                return Batch(tried, token, probes=probe)
            probe.try_again_soon()
        # Heads that are due and fresh events take turns, so that many failures do not hold up the other keys.
        self._heads_first = not self._heads_first
        found = self._claim_head(session, given) if self._heads_first else []
        found = found or self._claim_free(session, given) or self._claim_head(session, given)
        return Batch(found, token)

    def _claim_head(self, session: WorkerSession, given: dict[str, Any]) -> list[InboxEvent]:
        """With order per key: one event that failed before, whose wait is over."""
        if session.order is None:
            return []
        for head in session.order.due():
            named = {"id": head.id, "created_at": head.created_at}
            if found := session.claim(session.statements.claim_head, {**given, **named}):
                return found
            session.order.refresh(head)
        return []

    def _claim_free(self, session: WorkerSession, given: dict[str, Any]) -> list[InboxEvent]:
        slots, blocked = ([], []) if session.order is None else (session.order.owned, session.order.blocked())
        more: dict[str, Any] = {"slots": slots, "blocked": blocked, "limit": self.settings.batch_size}
        if not self.guard.pauses:
            return session.claim(session.statements.claim, {**given, **more})
        if session.order is not None and self.guard.is_full():
            return []
        more |= {"paused": self.guard.paused_types(), "only": None}
        return session.claim(session.statements.claim_beside, {**given, **more})

    def _claim_probe(self, session: WorkerSession, given: dict[str, Any], pause: Pause) -> list[InboxEvent]:
        """One event of a paused handler; with order per key, of another key each time."""
        order = session.order
        for key in list(pause.keys)[:PROBED_KEYS] if order is not None else ():
            tried = pause.keys.pop(key)
            head = order.heads.get(key) if order is not None else None
            if order is None or head is None or head.due != math.inf:
                continue
            named = {"id": head.id, "created_at": head.created_at}
            if found := session.claim(session.statements.claim_head, {**given, **named}):
                pause.keys[key] = tried
                return found
            order.refresh(head)
        slots, blocked = ([], []) if order is None else (order.owned, order.blocked())
        more = {"slots": slots, "blocked": blocked, "limit": 1, "paused": [], "only": list(pause.types)}
        return session.claim(session.statements.claim_beside, {**given, **more})

    def _chores(self, session: WorkerSession) -> None:
        now = time.monotonic()
        if now < self._next_chores:
            return
        self._next_chores = now + self.settings.maintenance_interval.total_seconds()
        given = {"group": self.settings.group, "limit": GIVE_BACK_LIMIT}
        with session.conn.transaction():
            adopted = session.give_back(session.statements.adopt, {**given, "class": session.alive_class})
            lease = {"lease": self.settings.lease}
            stale = session.give_back(session.statements.release_stale, {**given, **lease})
            self._settler.given_back(session, [*adopted, *stale])
        if adopted or stale:
            log.warning(
                "events of other workers are pending again",
                extra={"group": self.settings.group, "disconnected": len(adopted), "ran_out": len(stale)},
            )
            self.tally.add(
                metrics.INBOX_GIVEN_BACK_TOTAL, len(adopted) + len(stale), group=self.settings.group
            )
        if session.order is not None:
            session.order.balance()

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
