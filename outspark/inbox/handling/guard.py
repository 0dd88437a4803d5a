"""The guard over handlers: one that fails for everything in the same way is paused, and its events wait.

A single event that fails is at fault itself and dies after its attempts. Where most events of a handler fail alike, the
handler is at fault: then no attempt is counted, nothing dies, and from time to time one event is tried. The first that
passes ends the pause.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeGuard

from outspark.config.inbox import WorkSettings
from outspark.contracts.omnibox.inbox_guard import PAUSED, REMEDY, what
from outspark.inbox.event import InboxEvent
from outspark.inbox.outcome import Handled, HandlingOutcome
from outspark.inbox.router import Router
from outspark.observability.causes import Causes, Trouble
from outspark.outcome import HELD, Dead, Held, Retry, Skipped
from outspark.redaction import storable

if TYPE_CHECKING:
    from outspark.inbox.handling.session import WorkerSession
    from outspark.inbox.handling.settle import Batch

log = logging.getLogger(__name__)

FIRST_LOOK = 0.25
SYNC = 5.0
"""Seconds between two looks at what other workers found out about a handler that is paused."""
QUIET = 60.0
"""Seconds between two words on one pause; whether they make a line of the log is not decided here."""
MOST_KEYS = 10_000
"""Keys that may wait for paused handlers in a worker's memory; with more of them it rests between its probes."""
MOST_HANDLERS = 1000
MOST_FAILURES = 1000
"""That are remembered of a handler for longer than the window."""

# What differs between errors of one kind: what stands in quotes or parentheses, and words with digits. Only the
# beginning of an error is looked at, because these are not linear.
_OWN_WORDS = re.compile(r"""'[^']*'|"[^"]*"|\([^)]*\)|\S*\d\S*""")
_LOOKED_AT = 300

Name = tuple[str, int]
"""Of a handler: as people know it, and one that no other function of this process has."""
Records = dict[Name, "Record"]


def kind(error: str) -> str:
    """`KeyError: 'x'` is of the same kind as `KeyError: 'y'`, and `order 17 is missing` as `order 18 is missing`."""
    return _OWN_WORDS.sub("#", error[:_LOOKED_AT])


@dataclass(slots=True)
class Record:
    """What became of the events of one handler of late, on the monotonic clock."""

    passed: list[tuple[float, int]] = field(default_factory=list)
    failed: dict[str, dict[str, float]] = field(default_factory=dict)
    """kind -> event -> when it failed last; an event stands under the kind that it failed with last"""
    kinds: dict[str, str] = field(default_factory=dict)
    """event -> kind"""

    def add_failure(self, kind: str, id: str, now: float) -> None:
        if (before := self.kinds.get(id)) is not None:
            self.failed[before].pop(id, None)
        self.kinds[id] = kind
        self.failed.setdefault(kind, {})[id] = now

    def forget_before(self, time: float) -> None:
        """Failures only where something passed since: with few keys in order, a broken handler takes long to show."""
        self.passed = [(at, count) for at, count in self.passed if at >= time]
        if not self.passed and len(self.kinds) <= MOST_FAILURES:
            return
        for kind, events in list(self.failed.items()):
            while events and events[first := next(iter(events))] < time:
                del events[first], self.kinds[first]
            if not events:
                del self.failed[kind]

    def common_kind(self, events: int, share: float) -> str | None:
        """The kind that so many failed with."""
        every = sum(count for _, count in self.passed) + sum(map(len, self.failed.values()))
        most = max(self.failed, key=lambda kind: len(self.failed[kind]), default=None)
        if most is None or len(self.failed[most]) < max(events, share * every):
            return None
        return most


@dataclass(slots=True)
class Pause:
    """Of one handler."""

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
    """With order per key: keys that wait for it, and whether their first event was tried before."""
    told_at: float = -math.inf
    patience: float = FIRST_LOOK
    """Seconds to the next look for an event to try. A shift may be short, and at its beginning knows no keys."""

    @property
    def wait(self) -> timedelta:
        """How long an event waits that failed; it is due when the next probe is."""
        return timedelta(seconds=self.length / 2)

    def look_again_soon(self) -> None:
        """Nothing was there to try: it is in other hands, not due yet, or of a key that the next batch shows."""
        self.probe_at = time.monotonic() + min(self.length, self.patience)
        self.patience = min(self.patience * 2, SYNC)

    def postpone(self, longest: float) -> None:
        self.length = min(self.length * 2, longest)
        self.probe_at = time.monotonic() + self.length


class Guard:
    """Of one worker. What it has paused shows in the table, so that other workers and those after it know it too."""

    def __init__(
        self, settings: WorkSettings, router: Router, causes: Causes | Trouble, records: Records
    ) -> None:
        self._settings = settings.dead_guard
        self._causes = causes
        self._router = router
        self._group = settings.group
        self._keeps_nothing = settings.strategy.complete == "before"
        """An event that failed is lost with the strategy at-most-once: it was completed before."""
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
        """Before handlers are called: what belongs to one that is paused is held, and what stands behind it."""
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
        """Once all of a batch is decided, and before it is settled."""
        if not self.on or batch.learned:
            return
        batch.learned = True
        now = time.monotonic()
        handlers = {self._learn(event, batch.outcomes.get(event.id, HELD), now) for event in batch.events}
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
        """The pause that an event waits for: it was held, or it failed as all the others do."""
        pause = self.pauses.get(self.handler(event)) if self.pauses else None
        if pause is None or isinstance(outcome, Held):
            return pause
        if self._keeps_nothing or not _counts(outcome):
            return None
        return pause if kind(outcome.error) in pause.kinds else None

    def settled(self, session: WorkerSession, batch: Batch) -> None:
        """After a batch is settled: say what changed, and let the next ones know."""
        for pause in list(self.pauses.values()):
            news = pause is batch.probes or pause.told_at == -math.inf
            if self._keeps_nothing and news and not self._mark(session, pause):
                self._end(session, pause, "nothing of it waits any more")
        self._tell_now_and_then(session)
        if batch.probes is not None and batch.probes.handler not in self.pauses:
            self._end(session, batch.probes, "an event has passed")

    def look(self, session: WorkerSession) -> None:
        """See what other workers found out, or the one before us, or the people who look after the table."""
        if not self.on:
            return
        # Not what this look will find: its first probe may end it.
        self._tell_now_and_then(session)
        marked: dict[Name, list[tuple[Any, ...]]] = {}
        for type, source, since, error in session.rows(session.guard.marks, {"group": self._group}):
            handler = self._name(type, source)
            marked.setdefault(handler, []).append((what(type, source), since, error.removeprefix(PAUSED)))
        for handler, rows in marked.items():
            if handler not in self.pauses:
                self._take_over(handler, rows)
        for handler in self.pauses.keys() - marked.keys():
            self._end(
                session, self.pauses[handler], "another worker has seen an event pass, or nothing waits"
            )
        self._next_sync = time.monotonic() + SYNC

    def look_soon(self) -> None:
        """The table may have changed, or nobody has looked yet."""
        self._next_sync = 0.0

    def look_now_and_then(self, session: WorkerSession) -> None:
        if (self.pauses or self._next_sync == 0.0) and time.monotonic() >= self._next_sync:
            self.look(session)

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
            if record.passed and record.passed[-1][0] == now:
                record.passed[-1] = (now, record.passed[-1][1] + 1)
            else:
                record.passed.append((now, 1))
        elif _counts(outcome):
            record.add_failure(kind(outcome.error), event.id, now)
        return handler

    def _learn_probe(self, batch: Batch, pause: Pause) -> None:
        outcomes = [batch.outcomes.get(event.id, HELD) for event in batch.events]
        if any(isinstance(outcome, Handled | Skipped) for outcome in outcomes):
            self.pauses.pop(pause.handler, None)
            self._records.pop(pause.handler, None)
            return
        pause.postpone(self._settings.longest_probe.total_seconds())
        for outcome in outcomes:
            if _counts(outcome):
                # It may fail for another reason by now.
                pause.error = outcome.error
                pause.kinds.add(kind(outcome.error))

    def _pause(self, handler: Name, common: str, batch: Batch) -> None:
        outcomes = [batch.outcomes.get(event.id, HELD) for event in batch.events]
        errors = (one.error for one in outcomes if _counts(one) and kind(one.error) == common)
        error = next(errors, common)
        types = {what(event.type, event.source) for event in batch.events if self.handler(event) == handler}
        self._open(handler, error, {common}, types, datetime.now(UTC), self._first_length(handler))
        del self._records[handler]

    def _first_length(self, handler: Name) -> float:
        """A handler that is paused again soon after is probed as rarely as before."""
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
        """Where no event that failed is kept, one that waits shows it."""
        given = {"group": self._group, "types": list(pause.types), "error": f"{PAUSED}{pause.error}"}
        return bool(session.rows(session.guard.mark, given))

    def _end(self, session: WorkerSession, pause: Pause, why: str) -> None:
        self.pauses.pop(pause.handler, None)
        self._lengths[pause.handler] = (pause.length, time.monotonic())
        session.rows(session.guard.clear, {"group": self._group, "types": list(pause.types)})
        if session.order is not None:
            session.order.go_on(pause.keys)
        log.debug("handler goes on: %s", why, extra={"group": self._group, "handler": pause.handler[0]})
        self._causes.clear(self._cause(pause))

    def _tell_now_and_then(self, session: WorkerSession) -> None:
        for pause in self.pauses.values():
            if time.monotonic() - pause.told_at >= QUIET:
                self._tell(session, pause)

    def _tell(self, session: WorkerSession, pause: Pause) -> None:
        pause.told_at = time.monotonic()
        given = {"group": self._group, "types": list(pause.types)}
        [(waiting,)] = session.rows(session.guard.waiting, given)
        since = pause.since.isoformat("T", "seconds")
        text = f"{pause.error} (since {since}); {waiting} events wait, no attempt is counted; {REMEDY}"
        self._causes.raise_(self._cause(pause), text)

    def _cause(self, pause: Pause) -> str:
        return f"handler is paused, its events fail alike: {pause.handler[0]} of {self._group}"


def _counts(outcome: HandlingOutcome) -> TypeGuard[Retry | Dead]:
    """Is it a failure that is counted?"""
    return isinstance(outcome, Dead) or (isinstance(outcome, Retry) and outcome.counted)
