"""A guard on the rate at which events of a type die: one cause that kills all of them must not empty the backlog.

It counts only while something dies: from the first death of a type on, for one window.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from outspark.config.fields import DeadGuardSettings
from outspark.delivery.destination import Breaker
from outspark.event import Event

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0


@dataclass(slots=True)
class _Window:
    ends: float
    settled: int = 0
    dead: int = 0


@dataclass(slots=True)
class DeadGuard:
    """For one source on one lane. Of a paused type single events go out, ever more rarely, until one succeeds."""

    source: str
    settings: DeadGuardSettings
    paused: dict[str, Breaker] = field(default_factory=dict)
    _windows: dict[str, _Window] = field(default_factory=dict)

    def watch(self, events: Sequence[Event], succeeded: Sequence[str], dead: Mapping[str, str]) -> None:
        """Take note of a batch: `succeeded` are the ids of events that are done, `dead` maps ids to errors."""
        if not self.settings.enabled or not (dead or self._windows or self.paused):
            return
        deaths = Counter(event.type for event in events if event.id in dead)
        done = frozenset(succeeded)
        successes = Counter(event.type for event in events if event.id in done)
        errors = {event.type: dead[event.id] for event in events if event.id in dead}
        for name in successes.keys() & self.paused.keys():
            log.debug("type is no longer paused", extra={"source": self.source, "type": name})
            del self.paused[name]
        now = time.monotonic()
        self._windows = {name: window for name, window in self._windows.items() if window.ends > now}
        for name in deaths.keys() | (successes.keys() & self._windows.keys()):
            window = self._windows.setdefault(name, _Window(now + self.settings.window.total_seconds()))
            window.dead += deaths[name]
            window.settled += deaths[name] + successes[name]
            if deaths[name]:
                self._judge(name, window, errors[name][:200])

    def drop_idle(self) -> None:
        for name in [name for name, breaker in self.paused.items() if breaker.is_idle()]:
            del self.paused[name]

    def presume(self, name: str, breaker: Breaker) -> None:
        """Another shift paused this type."""
        self.paused.setdefault(name, breaker)

    def _judge(self, name: str, window: _Window, error: str) -> None:
        if name in self.paused:
            self.paused[name].postpone(self.paused[name].reason)
            return
        limits = self.settings
        many = window.dead > limits.events
        most = window.dead >= limits.at_least and window.dead > limits.share * window.settled
        if not many and not most:
            return
        reason = (
            f"{window.dead} of {window.settled} events of type {name!r} died within "
            f"{limits.window.total_seconds():g} s, the last of: {error}; mend the cause, then requeue the dead ones"
        )
        self.paused[name] = Breaker(reason, pause=FIRST_PAUSE, longest=LONGEST_PAUSE)
        self.paused[name].postpone(reason)
        # The driver logs it once for all lanes.
        log.debug("type is paused", extra={"source": self.source, "type": name, "reason": reason})
