"""Logs lasting problems by cause: one line when a problem begins, ever rarer ones while it lasts, one when it is over.

`Causes` does so for a whole application, for any number of lanes that raise the same cause. `Trouble` collects the
causes of one shift for its report, because a shift does not know what other lanes have reported already.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger(__name__)

FIRST_INTERVAL, LONGEST_INTERVAL = 60.0, 3600.0
_CHECK_INTERVAL = 1.0


@dataclass(slots=True)
class Trouble:
    """The problems of one shift, as plain JSON: cause -> its last text, how often it occurred, whether it is over."""

    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def raise_(self, cause: str, text: str, count: int = 1) -> None:
        log.debug(cause, extra={"error": text, "count": count})
        before = self.found.get(cause, {"count": 0})["count"]
        self.found[cause] = {"text": text, "count": before + count, "over": False}

    def clear(self, cause: str = "") -> None:
        """Mark a cause as over, or all of them."""
        for one in self.found.values() if not cause else [self.found[cause]] if cause in self.found else ():
            one["over"] = True


@dataclass(slots=True)
class _Lasting:
    text: str
    level: int
    since: float
    next_line: float
    interval: float = FIRST_INTERVAL
    count: int = 0
    who: set[object] = field(default_factory=set)
    calm_since: float = 0.0


class Causes:
    """Safe to use from several threads.

    Lines repeat after 1, 2, 4, ... minutes, at most an hour: a problem of 10 minutes has 5 lines, at 0, 1, 3 and 7
    minutes and at the end. A cause is over when all reporters have cleared it and none has raised it again for `calm`
    seconds, because lanes notice an outage one after the other.
    """

    def __init__(self, calm: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._calm, self._clock = calm, clock
        self._lasting: dict[str, _Lasting] = {}
        self._lock = threading.RLock()

    def raise_(
        self, cause: str, text: str, count: int = 1, *, who: object = "", level: int = logging.WARNING
    ) -> None:
        """Report a problem. Equal `cause`s share their lines and begin them; `text` is the most recent detail."""
        with self._lock:
            now = self._clock()
            one = self._lasting.get(cause)
            if one is None:
                one = self._lasting[cause] = _Lasting(text, level, now, now + FIRST_INTERVAL)
                log.log(level, cause, extra={"error": text, **_by(who)})
            one.text, one.count = text, one.count + count
            one.who.add(who)
            self.write_due()

    def clear(self, cause: str, *, who: object = "") -> None:
        """Withdraw a problem. Harmless when it was not raised."""
        with self._lock:
            one = self._lasting.get(cause)
            if one is not None and who in one.who:
                one.who.discard(who)
                one.calm_since = self._clock()
            self.write_due()

    def take(self, who: object, found: Mapping[str, Mapping[str, Any]]) -> None:
        """Take the `Trouble` of a lane's shift; causes that it does not mention are over for that lane."""
        with self._lock:
            for cause, one in found.items():
                self.raise_(cause, one["text"], one["count"], who=who)
            for cause in list(self._lasting):
                if cause not in found or found[cause]["over"]:
                    self.clear(cause, who=who)

    def write_due(self) -> None:
        """Write the lines that are due."""
        with self._lock:
            now = self._clock()
            for cause, one in list(self._lasting.items()):
                extra = {"count": one.count, "seconds": round(now - one.since), "error": one.text}
                if not one.who and now - one.calm_since >= self._calm:
                    del self._lasting[cause]
                    log.info(f"{cause}: over", extra=extra)
                elif one.who and now >= one.next_line:
                    one.interval = min(one.interval * 2, LONGEST_INTERVAL)
                    one.next_line = now + one.interval
                    log.log(one.level, f"{cause}: ongoing", extra=extra)

    def run(self, stopping: threading.Event) -> None:
        """The body of a thread that calls `write_due` every second."""
        while not stopping.wait(_CHECK_INTERVAL):
            self.write_due()


def _by(who: object) -> dict[str, object]:
    return {} if who == "" else {"lane": who}
