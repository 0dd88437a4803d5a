"""What became of an event in its worker's hands: the outcomes of the relay, and two that only handling knows."""

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

# Nobody's fault: two transactions got in each other's way.
_COLLISIONS = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)


@dataclass(frozen=True, slots=True)
class Handled:
    """Its handler returned, and its effects stand."""


@dataclass(frozen=True, slots=True)
class Lost:
    """It was taken out of our hands meanwhile: nothing of what was done for it here stands."""

    error: str = "the lock was somebody else's when the handler returned"


HandlingOutcome = Handled | Skipped | Retry | Dead | Held | Lost

HANDLED: Final = Handled()
LOST: Final = Lost()


class TimedOut(Exception):
    """A handler took longer than it may."""

    def __init__(self, timeout: timedelta) -> None:
        super().__init__(f"the handler took longer than {durations.text(timeout)}")


def outcome_of(error: BaseException) -> Retry | Dead:
    """What an error makes of its event."""
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
