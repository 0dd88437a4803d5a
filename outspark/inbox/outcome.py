"""The outcome of one handled event: the outcomes of the relay, and two that only handling knows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import psycopg

from outspark import redaction
from outspark.config import durations
from outspark.errors import Reject, RetryLater
from outspark.outcome import Dead, Held, Retry, Skipped
from outspark.redaction import storable

# Neither the event nor its handler is at fault: two transactions collided.
_COLLISIONS = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)


@dataclass(frozen=True, slots=True)
class Handled:
    """The handler returned, and its effects stand."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Another worker or an operator took the event while its handler ran: nothing of what was done for it stands."""

    error: str = "the event was no longer locked by this worker when its handler returned"


HandlingOutcome = Handled | Skipped | Retry | Dead | Held | Lost

HANDLED: Final = Handled()
LOST: Final = Lost()


class TimedOut(Exception):
    """An async handler took longer than its timeout and was cancelled."""

    def __init__(self, timeout: timedelta) -> None:
        super().__init__(f"the handler took longer than {durations.text(timeout)}")


def outcome_of(error: BaseException) -> Retry | Dead:
    """The outcome of an event whose handler, or the commit after it, raised this error."""
    text = redaction.of(error)
    match error:
        case Reject():
            return Dead(text or "rejected by its handler")
        case RetryLater():
            after = None if error.after is None else timedelta(seconds=error.after)
            return Retry(text, counted=False, after=after)
        case TimedOut():
            return Retry(text)
    name = type(error).__name__
    return Retry(storable(f"{name}: {text}") if text else name, counted=not isinstance(error, _COLLISIONS))
