"""The outcome of one event. A publisher answers with one outcome per message; settle writes it to the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

DeadKind = Literal["topic", "permission", "size", "other"]
"""Why an event is dead: its topic does not exist or access to it is denied, the event is too large, or other."""

TopicFault = Literal["missing", "forbidden", "full"]
"""Why a topic accepts nothing: it does not exist, access to it is denied, or it is full."""

KIND_OF_FAULT: Final[Mapping[TopicFault, DeadKind]] = {"missing": "topic", "forbidden": "permission"}
"""Fault of a topic -> kind of its dead events, where events do not wait for the topic. A full topic kills none."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The broker acknowledged the event."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A transform dropped the event on purpose. Final, and counted separately."""

    reason: str = "dropped by transform"


@dataclass(frozen=True, slots=True)
class Retry:
    """A later try may succeed. `counted` is False when the destination, not the event, is at fault.

    `after` is a delay that the destination requested (a Retry-After); without it the contract's backoff decides. With
    a `fault` only one topic fails, and the rest of the destination is healthy. `topic` has an open breaker.
    """

    error: str
    counted: bool = True
    after: timedelta | None = None
    fault: TopicFault | None = None
    topic: str | None = None

    @classmethod
    def of_topic(cls, fault: TopicFault, error: str) -> Retry:
        """The answer of a publisher when one topic is at fault, not the event and not the whole destination."""
        return cls(error, counted=False, fault=fault)


@dataclass(frozen=True, slots=True)
class Dead:
    """The event can never succeed, or its attempts ran out. Final until it is requeued."""

    error: str
    kind: DeadKind = "other"


@dataclass(frozen=True, slots=True)
class Held:
    """An earlier event of the same key did not succeed, so this one waits behind it. No attempt is counted."""


Outcome = Delivered | Skipped | Retry | Dead | Held

DELIVERED: Final = Delivered()
HELD: Final = Held()


def all_delivered(outcomes: Sequence[Outcome]) -> bool:
    """True for most batches, so callers check it first: one loop in C instead of a `match` per outcome."""
    return outcomes.count(DELIVERED) == len(outcomes)
