"""The guard over handlers: pauses a handler that fails in the same way for most of its events.

When a single event fails, the event is at fault and is dead after its attempts. When most events of a handler fail
alike, the handler is at fault: the guard pauses it, no attempt is counted, no event dies, and from time to time the
worker tries one event (a probe). The first event that succeeds ends the pause.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeGuard

from outspark.config.inbox import WorkSettings
from outspark.contracts.omnibox.inbox_guard import PAUSED, REMEDY, what
from outspark.inbox.event import InboxEvent
from outspark.inbox.handling.batch import Batch
from outspark.inbox.handling.session import WorkerSession
from outspark.inbox.outcome import Handled, HandlingOutcome
from outspark.inbox.router import Router
from outspark.observability.causes import Causes, Trouble
from outspark.outcome import HELD, Dead, Held, Retry, Skipped
from outspark.redaction import storable

log = logging.getLogger(__name__)

FIRST_RETRY = 0.25
SYNC = 5.0
"""Seconds between two reads of the pauses that other workers wrote into the table."""
QUIET = 60.0
"""Seconds between two reports of one pause to `Causes`, which decides whether a report makes a line of the log."""
MOST_KEYS = 10_000
"""Keys that may wait for paused handlers in a worker's memory; with more, the worker claims nothing but probes."""
MOST_HANDLERS = 1000
MOST_FAILURES = 1000
"""Failures of one handler that are remembered for longer than the window."""

# What differs between errors of one kind: quoted text, text in parentheses, and words with digits. Only the beginning
# of an error is compared, because the expression does not run in linear time.
_OWN_WORDS = re.compile(r"""'[^']*'|"[^"]*"|\([^)]*\)|\S*\d\S*""")
_COMPARED = 300

Name = tuple[str, int]
"""Of a handler: the name in logs, and the id of its function, which is unique in this process."""
Records = dict[Name, "Record"]


def kind(error: str) -> str:
    """`KeyError: 'x'` is of the same kind as `KeyError: 'y'`, and `order 17 is missing` as `order 18 is missing`."""
    return _OWN_WORDS.sub("#", error[:_COMPARED])


@dataclass(slots=True)
class Record:
    """The recent outcomes of one handler's events, on the monotonic clock."""

    succeeded: list[tuple[float, int]] = field(default_factory=list)
    failed: dict[str, dict[str, float]] = field(default_factory=dict)
    """kind -> event -> when it failed last; an event is listed under the kind of its last failure"""
    kinds: dict[str, str] = field(default_factory=dict)
    """event -> kind"""

    def add_failure(self, kind: str, id: str, now: float) -> None:
        if (before := self.kinds.get(id)) is not None:
            self.failed[before].pop(id, None)
        self.kinds[id] = kind
        self.failed.setdefault(kind, {})[id] = now

    def forget_before(self, time: float) -> None:
        """Keep failures until an event succeeds: with few keys in order, a broken handler takes long to show."""
        self.succeeded = [(at, count) for at, count in self.succeeded if at >= time]
        if not self.succeeded and len(self.kinds) <= MOST_FAILURES:
            return
        for kind, events in list(self.failed.items()):
            while events and events[first := next(iter(events))] < time:
                del events[first], self.kinds[first]
            if not events:
                del self.failed[kind]

    def common_kind(self, events: int, share: float) -> str | None:
        """The kind of at least `events` failures that are at least `share` of all outcomes."""
        every = sum(count for _, count in self.succeeded) + sum(map(len, self.failed.values()))
        most = max(self.failed, key=lambda kind: len(self.failed[kind]), default=None)
        if most is None or len(self.failed[most]) < max(events, share * every):
            return None
        return most


@dataclass(slots=True)
class Pause:
    """Of one handler, from the moment it is found to be at fault until a probe succeeds."""

    handler: Name
    error: str
    kinds: set[str]
    types: set[str]
    since: datetime
    length: float
    """Seconds from one probe to the next."""
    probe_at: float
    """On the monotonic clock."""
    keys: dict[str, bool] = field(default_factory=dict)
    """With order per key: keys that wait for the handler, and whether their first event was tried before."""
    reported_at: float = -math.inf
    patience: float = FIRST_RETRY
    """Seconds until the worker tries again to claim a probe: a shift may be short, and knows no keys when it begins."""

    @property
    def wait(self) -> timedelta:
        """How long a failed event waits. It is half of the time to the next probe, so that the event is due by then."""
        return timedelta(seconds=self.length / 2)

    def try_again_soon(self) -> None:
        """No event could be claimed as a probe: it is claimed elsewhere, not due yet, or of a key not known yet."""
        self.probe_at = time.monotonic() + min(self.length, self.patience)
        self.patience = min(self.patience * 2, SYNC)

    def postpone(self, longest: float) -> None:
        self.length = min(self.length * 2, longest)
        self.probe_at = time.monotonic() + self.length


class Guard:
    """Of one worker. The table shows what the guard has paused, so that other workers and later ones know it, too."""

    def __init__(
        self, settings: WorkSettings, router: Router, causes: Causes | Trouble, records: Records
    ) -> None:
        self._settings = settings.dead_guard
        self._causes = causes
        self._router = router
        self._group = settings.group
        self._keeps_nothing = settings.strategy.complete == "before"
        """With the strategy at-most-once an event that fails is not kept: it was completed before its handler ran."""
        self._records = records
        self._lengths: dict[Name, tuple[float, float]] = {}
        """handler -> how long its last pause was, and when that ended"""
        self._next_sync = 0.0
        self.pauses: dict[Name, Pause] = {}

    @property
    def on(self) -> bool:
        return self._settings.events > 0

    def paused_types(self) -> list[str]:
        return [one for pause in self.pauses.values() for one in pause.types]

    def is_full(self) -> bool:
        return sum(len(pause.keys) for pause in self.pauses.values()) >= MOST_KEYS

    def due(self) -> Pause | None:
        """The pause whose probe is due first, if it is."""
        first = min(self.pauses.values(), key=lambda pause: pause.probe_at, default=None)
        return first if first is not None and first.probe_at <= time.monotonic() else None

    def next_probe(self) -> float | None:
        return min((pause.probe_at for pause in self.pauses.values()), default=None)

    def hold(self, batch: Batch, ordered: bool) -> None:
        """Before handlers are called: hold the events of paused handlers and, with order, what follows in their key."""
        if not self.pauses or batch.probes is not None:
            return
        stopped: set[str] = set()
        for event in batch.events:
            pause = self.pauses.get(self.handler(event))
            if pause is not None:
                pause.types.add(what(event.type, event.source))
            if pause is not None or (ordered and event.key in stopped):
                batch.outcomes[event.id] = HELD
                if event.key is not None:
                    stopped.add(event.key)

    def learn(self, batch: Batch) -> None:
        """Learn from the outcomes of a batch, once and before it is settled."""
        if not self.on or batch.learned:
            return
        batch.learned = True
        now = time.monotonic()
        handlers = {self._learn(event, batch.outcome(event), now) for event in batch.events}
        for handler in handlers - self.pauses.keys():
            record = self._records[handler]
            record.forget_before(now - self._settings.window.total_seconds())
            common = record.common_kind(self._settings.events, self._settings.share)
            if common is not None:
                self._pause(handler, common, batch)
        if batch.probes is not None:
            self._learn_probe(batch, batch.probes)
        if len(self._records) > MOST_HANDLERS:
            self._records.clear()

    def pause_of(self, event: InboxEvent, outcome: HandlingOutcome) -> Pause | None:
        """The pause that an event waits for: it was held, or it failed in the way that its handler is paused for."""
        pause = self.pauses.get(self.handler(event)) if self.pauses else None
        if pause is None or isinstance(outcome, Held):
            return pause
        if self._keeps_nothing or not _counts(outcome):
            return None
        return pause if kind(outcome.error) in pause.kinds else None

    def settled(self, session: WorkerSession, batch: Batch) -> None:
        """After a batch is settled: report pauses, mark them in the table, and end the one whose probe succeeded."""
        for pause in list(self.pauses.values()):
            news = pause is batch.probes or pause.reported_at == -math.inf
            if self._keeps_nothing and news and not self._mark(session, pause):
                self._end(session, pause, "none of its events waits any more")
        self._report_when_due(session)
        if batch.probes is not None and batch.probes.handler not in self.pauses:
            self._end(session, batch.probes, "an event succeeded")

    def sync(self, session: WorkerSession) -> None:
        """Read which handlers other workers, earlier workers or operators have paused or resumed in the table."""
        if not self.on:
            return
        # Pauses that are read below are not reported yet: their first probe may end them.
        self._report_when_due(session)
        marked: dict[Name, list[tuple[Any, ...]]] = {}
        for type, source, since, error in session.rows(session.guard.marks, {"group": self._group}):
            handler = self._name(type, source)
            marked.setdefault(handler, []).append((what(type, source), since, error.removeprefix(PAUSED)))
        for handler, rows in marked.items():
            if handler not in self.pauses:
                self._take_over(handler, rows)
        for handler in self.pauses.keys() - marked.keys():
            self._end(session, self.pauses[handler], "another worker saw an event succeed, or none waits")
        self._next_sync = time.monotonic() + SYNC

    def sync_soon(self) -> None:
        """On a new session: the table may have changed meanwhile."""
        self._next_sync = 0.0

    def sync_when_due(self, session: WorkerSession) -> None:
        if (self.pauses or self._next_sync == 0.0) and time.monotonic() >= self._next_sync:
            self.sync(session)

    def handler(self, event: InboxEvent) -> Name:
        return self._name(event.type, event.source)

    def _name(self, type: str, source: str) -> Name:
        handler = self._router.find(type, source)
        if handler is None:
            return f"none for {type} of {source}", 0
        return handler.name, id(handler.function)

    def _learn(self, event: InboxEvent, outcome: HandlingOutcome, now: float) -> Name:
        handler = self.handler(event)
        record = self._records.setdefault(handler, Record())
        if isinstance(outcome, Handled | Skipped):
            if record.succeeded and record.succeeded[-1][0] == now:
                record.succeeded[-1] = (now, record.succeeded[-1][1] + 1)
            else:
                record.succeeded.append((now, 1))
        elif _counts(outcome):
            record.add_failure(kind(outcome.error), event.id, now)
        return handler

    def _learn_probe(self, batch: Batch, pause: Pause) -> None:
        outcomes = [batch.outcome(event) for event in batch.events]
        if any(isinstance(outcome, Handled | Skipped) for outcome in outcomes):
            self.pauses.pop(pause.handler, None)
            self._records.pop(pause.handler, None)
            return
        pause.postpone(self._settings.longest_probe.total_seconds())
        for outcome in outcomes:
            if _counts(outcome):
                # The handler may fail for another reason by now.
                pause.error = outcome.error
                pause.kinds.add(kind(outcome.error))

    def _pause(self, handler: Name, common: str, batch: Batch) -> None:
        outcomes = [batch.outcome(event) for event in batch.events]
        errors = (one.error for one in outcomes if _counts(one) and kind(one.error) == common)
        error = next(errors, common)
        types = {what(event.type, event.source) for event in batch.events if self.handler(event) == handler}
        self._open(handler, error, {common}, types, datetime.now(UTC), self._first_length(handler))
        del self._records[handler]

    def _first_length(self, handler: Name) -> float:
        """A handler that is paused again soon after its last pause is probed as rarely as in that one."""
        length, ended = self._lengths.pop(handler, (0.0, -math.inf))
        lately = time.monotonic() - ended < self._settings.window.total_seconds()
        return max(self._settings.probe.total_seconds(), length if lately else 0.0)

    def _take_over(self, handler: Name, rows: Iterable[tuple[Any, ...]]) -> None:
        types, sinces, errors = zip(*rows, strict=True)
        self._open(handler, errors[0], {kind(error) for error in errors}, set(types), min(sinces), 0.0)
        self.pauses[handler].length = self._settings.probe.total_seconds()

    def _open(
        self, handler: Name, error: str, kinds: set[str], types: set[str], since: datetime, length: float
    ) -> None:
        probe_at = time.monotonic() + length
        self.pauses[handler] = Pause(handler, storable(error), kinds, types, since, length, probe_at)
        self._next_sync = time.monotonic() + SYNC

    def _mark(self, session: WorkerSession, pause: Pause) -> bool:
        """Where failed events are not kept, an event that waits carries the mark of the pause."""
        given = {"group": self._group, "types": list(pause.types), "error": f"{PAUSED}{pause.error}"}
        return bool(session.rows(session.guard.mark, given))

    def _end(self, session: WorkerSession, pause: Pause, why: str) -> None:
        self.pauses.pop(pause.handler, None)
        self._lengths[pause.handler] = (pause.length, time.monotonic())
        session.rows(session.guard.clear, {"group": self._group, "types": list(pause.types)})
        if session.order is not None:
            session.order.go_on(pause.keys)
        log.debug(
            "handler is no longer paused: %s", why, extra={"group": self._group, "handler": pause.handler[0]}
        )
        self._causes.clear(self._cause(pause))

    def _report_when_due(self, session: WorkerSession) -> None:
        for pause in self.pauses.values():
            if time.monotonic() - pause.reported_at >= QUIET:
                self._report(session, pause)

    def _report(self, session: WorkerSession, pause: Pause) -> None:
        pause.reported_at = time.monotonic()
        given = {"group": self._group, "types": list(pause.types)}
        [(waiting,)] = session.rows(session.guard.waiting, given)
        since = pause.since.isoformat("T", "seconds")
        text = f"{pause.error} (since {since}); {waiting} events wait, no attempt is counted; {REMEDY}"
        self._causes.raise_(self._cause(pause), text)

    def _cause(self, pause: Pause) -> str:
        return f"handler is paused, its events fail alike: {pause.handler[0]} of {self._group}"


def _counts(outcome: HandlingOutcome) -> TypeGuard[Retry | Dead]:
    """Is the outcome a failure that counts as an attempt?"""
    return isinstance(outcome, Dead) or (isinstance(outcome, Retry) and outcome.counted)
