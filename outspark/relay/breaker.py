"""A destination as a lane uses it: a publisher behind a circuit breaker; one that is down burns no attempts."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from outspark.errors import DestinationError
from outspark.event import Message
from outspark.outcome import Outcome, Retry
from outspark.publishers.publisher import Publisher

log = logging.getLogger(__name__)

FIRST_PROBE, LONGEST_PROBE = 0.2, 5.0
CHECK_TIMEOUT = 1.0
CHECK_SHARE = 20.0
"""The pause after a probe is so many times as long as the probe took, or longer: the lane waits for it."""


@dataclass(slots=True)
class Destination:
    """Closed: messages go out. Open: nothing goes out until a probe, made ever more rarely, finds it well."""

    name: str
    publisher: Publisher
    timeout: float
    open: bool = False
    reason: str = ""
    pause: float = FIRST_PROBE
    """Seconds from the next failure to the probe after it."""
    opened: int = 0
    """How often it went down since that was last reported."""
    _probe_at: float = 0.0

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        """One outcome per message, whatever the publisher does."""
        if self.open:
            return [Retry(f"{self.name} is down: {self.reason}", counted=False)] * len(messages)
        try:
            outcomes = self.publisher.publish(messages, min(timeout, self.timeout))
        except DestinationError as error:
            outcomes = [Retry(str(error), counted=False)] * len(messages)
        except Exception as error:
            log.exception(
                "publisher failed", extra={"destination": self.name, "events": [m.id for m in messages[:5]]}
            )
            outcomes = [Retry(f"{type(error).__name__}: {error}")] * len(messages)
        failure = next((o for o in outcomes if isinstance(o, Retry) and not o.counted), None)
        if failure is not None:
            self._open(failure.error)
        else:
            self.pause = FIRST_PROBE
        return outcomes

    def probe(self) -> bool:
        """True when an open breaker could be closed."""
        if not self.open or time.monotonic() < self._probe_at:
            return False
        started = time.monotonic()
        try:
            self.publisher.check(CHECK_TIMEOUT)
        except Exception as error:  # noqa: BLE001 - whatever a probe meets, the destination is not well yet
            self.reason = str(error)
            self._postpone(CHECK_SHARE * (time.monotonic() - started))
            return False
        log.debug("destination is back", extra={"destination": self.name})
        self.open = False
        return True

    def presume_down(self, reason: str, probe_in: float, pause: float) -> None:
        """Another lane found it down: its probes go on here in their rhythm, however short the shifts are."""
        self.open, self.reason, self.pause = True, reason, pause
        self._probe_at = time.monotonic() + probe_in

    def next_probe(self) -> float | None:
        return self._probe_at if self.open else None

    def _open(self, reason: str) -> None:
        if not self.open:
            # Told by the driver, once for all lanes.
            log.debug("destination is down", extra={"destination": self.name, "reason": reason})
            self.opened += 1
        self.open, self.reason = True, reason
        self._postpone()

    def _postpone(self, at_least: float = 0.0) -> None:
        # Only a batch that went through brings the pause back down: a destination may answer a probe and take nothing.
        self._probe_at = time.monotonic() + max(self.pause, at_least)
        self.pause = min(self.pause * 2, LONGEST_PROBE)
