"""What became of one event. A publisher answers with one outcome per message; settle writes them down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

DeadKind = Literal["topic", "permission", "size", "other"]
"""What is wrong with a dead event: there is no such topic, we may not use it, it is too large, or something else."""

TopicFault = Literal["missing", "forbidden", "full"]
"""What is wrong with a topic: it does not exist, we may not write to it, or it takes no more."""

KIND_OF_FAULT: Final[Mapping[TopicFault, DeadKind]] = {"missing": "topic", "forbidden": "permission"}
"""What an event dies of where it does not wait for its topic. A full topic kills nothing."""


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

    `after` is the destination's own wish (a Retry-After); without it the contract's backoff decides. With a `fault`
    one topic is to blame, and the rest of the destination is sound. `topic` is the one whose breaker is open.
    """

    error: str
    counted: bool = True
    after: timedelta | None = None
    fault: TopicFault | None = None
    topic: str | None = None

    @classmethod
    def of_topic(cls, fault: TopicFault, error: str) -> Retry:
        """What a publisher answers when a topic, not the event and not the whole destination, is at fault."""
        return cls(error, counted=False, fault=fault)


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


def all_delivered(outcomes: Sequence[Outcome]) -> bool:
    """True of most batches, so this is asked first: one pass in C instead of a look at each outcome."""
    return outcomes.count(DELIVERED) == len(outcomes)
