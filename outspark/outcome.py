"""What became of one event. A publisher answers with one outcome per message; settle writes them down."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

DeadKind = Literal["topic", "permission", "size", "other"]
"""What is wrong with a dead event: there is no such topic, we may not use it, it is too large, or something else."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The broker acknowledged it."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A transform dropped it on purpose. Final, counted apart."""

    reason: str = "dropped by transform"


@dataclass(frozen=True, slots=True)
class Retry:
    """It may pass later. `counted` is False when the destination, not the event, is at fault.

    `after` is the destination's own wish (a Retry-After); without it the contract's backoff decides.
    """

    error: str
    counted: bool = True
    after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Dead:
    """It can never pass, or its attempts ran out. Final until it is requeued."""

    error: str
    kind: DeadKind = "other"


@dataclass(frozen=True, slots=True)
class Held:
    """An earlier event of its key did not pass, so it waits behind it. No attempt is counted."""


Outcome = Delivered | Skipped | Retry | Dead | Held

DELIVERED: Final = Delivered()
HELD: Final = Held()
