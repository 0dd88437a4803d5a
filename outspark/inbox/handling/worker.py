"""The handling loop: claim, run handlers, settle what did not pass, and look after what others left behind."""

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
from outspark.inbox.handling.guard import Guard, Pause, Records
from outspark.inbox.handling.runner import HandlerRunner
from outspark.inbox.handling.session import WorkerSession, open_worker_session
from outspark.inbox.handling.settle import Batch, OnDead, Settler
from outspark.inbox.router import Router
from outspark.observability import metrics
from outspark.observability.causes import Causes, Trouble
from outspark.observability.metrics import Tally

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
GIVE_BACK_LIMIT = 1000
PROBED_KEYS = 10


class Worker:
    """Handles the events of one consumer group. For one thread alone; start another for more.

    `run_once` claims and handles one batch; `run` does so until it is told to stop. One connection is for the worker's
    own statements, another for its handlers. `records` are what the worker before it in this process saw of handlers.
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
        self._unsettled: list[Batch] = []
        self._next_chores = 0.0
        self._heads_first = False

    def run_once(self) -> int:
        """Claim a batch and handle it; how many events that were. Errors of the database come out.

        HandlerHung when too many handlers of this process hang: it should end then, and be started again.
        """
        if self._session is None:
            self._session = open_worker_session(self.url, self.table, self.settings)
            self._next_chores = 0.0
            self.guard.look_soon()
        try:
            return self._once(self._session)
        except psycopg.OperationalError:
            self._leave()
            raise

    def run(self, stopping: Stopping) -> None:
        """Work until told to stop, through losses of the database."""
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
        """How long a host may sleep after `run_once` found nothing, in seconds."""
        longest = self.settings.poll_interval.total_seconds()
        if self._session is None:
            return longest
        [(due,)] = self._session.rows(self._session.statements.next_due, {"group": self.settings.group})
        waits = [longest] if due is None else [longest, max(due, 0.0)]
        head = self._session.order.next_due() if self._session.order is not None else None
        later = [at for at in (head, self.guard.next_probe()) if at is not None]
        return min([*waits, *(max(at - time.monotonic(), 0.0) for at in later)])

    def close(self) -> None:
        """Harmless when it is closed."""
        self._runner.close()
        self._leave()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _once(self, session: WorkerSession) -> int:
        self._settle(session)
        self._chores(session)
        self.guard.look_now_and_then(session)
        batch = self._claim(session)
        if batch.events:
            # From here on the events are in our hands, whatever happens.
            self._unsettled.append(batch)
            self.guard.hold(batch, ordered=session.order is not None)
            try:
                self._runner.handle(session, batch)
            finally:
                if not session.conn.broken:
                    self._settle(session)
        return len(batch.events)

    def _claim(self, session: WorkerSession) -> Batch:
        token = session.token()
        given: dict[str, Any] = {"group": self.settings.group, "token": token}
        probe = self.guard.due()
        if probe is not None:
            if tried := self._claim_probe(session, given, probe):
                return Batch(tried, token, probes=probe)
            probe.look_again_soon()
        # Heads that are due and fresh events take turns, so that many failures hold up nobody else.
        self._heads_first = not self._heads_first
        found = self._claim_head(session, given) if self._heads_first else []
        found = found or self._claim_free(session, given) or self._claim_head(session, given)
        return Batch(found, token)

    def _claim_head(self, session: WorkerSession, given: dict[str, Any]) -> list[InboxEvent]:
        """With order per key: the first of those that failed before and are due."""
        if session.order is None:
            return []
        for head in session.order.due():
            named = {"id": head.id, "created_at": head.created_at}
            if found := session.claim(session.statements.claim_head, {**given, **named}):
                return found
            session.order.look_again(head)
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
        """One event of a handler that is paused: with order per key, of another key each time."""
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
            order.look_again(head)
        slots, blocked = ([], []) if order is None else (order.owned, order.blocked())
        more = {"slots": slots, "blocked": blocked, "limit": 1, "paused": [], "only": list(pause.types)}
        return session.claim(session.statements.claim_beside, {**given, **more})

    def _settle(self, session: WorkerSession) -> None:
        while self._unsettled:
            self._settler.settle(session, self._unsettled[0])
            self._unsettled.pop(0)

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
                "events came back from other workers",
                extra={"group": self.settings.group, "vanished": len(adopted), "ran_out": len(stale)},
            )
            self.tally.add(
                metrics.INBOX_GIVEN_BACK_TOTAL, len(adopted) + len(stale), group=self.settings.group
            )
        if session.order is not None:
            session.order.take()

    def _leave(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
