"""A batch of messages to be accepted into an inbox, and the outcome of each message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from outspark.brokers.feed import Received
from outspark.inbox.intake.message import Incoming


@dataclass(frozen=True, slots=True)
class New:
    word: ClassVar[str] = "new"
    """The value of the metric's label `outcome`."""
    id: str


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The group has this message already, or another message with the same idempotency key."""

    by: Literal["message_id", "idempotency_key"]

    @property
    def word(self) -> str:
        return "duplicate" if self.by == "message_id" else "duplicate_key"


SAME_MESSAGE, SAME_KEY = Duplicate("message_id"), Duplicate("idempotency_key")


@dataclass(frozen=True, slots=True)
class Refused:
    """The message can never be handled, so it is stored as dead, with its body unchanged."""

    word: ClassVar[str] = "refused"
    id: str
    error: str


@dataclass(frozen=True, slots=True)
class OutOfPartitions:
    """No partition covers the message's time. It is stored as dead in the current partition and may be requeued."""

    word: ClassVar[str] = "out_of_partitions"
    id: str
    error: str


Accepted = New | Duplicate | Refused | OutOfPartitions


@dataclass(slots=True)
class IncomingBatch:
    """Messages by index in the batch: `incoming` has those that are not decided yet, `outcomes` the others."""

    messages: Sequence[Received]
    incoming: dict[int, Incoming]
    outcomes: dict[int, Accepted] = field(default_factory=dict)
    unpartitioned: set[int] = field(default_factory=set)
    """Messages whose own time no partition covers."""

    def check(self) -> None:
        """Find bodies that are not JSON; their messages are stored as dead."""
        self.incoming = {index: one.checked() for index, one in self.incoming.items()}

    def decide(self, index: int, outcome: Accepted) -> None:
        self.outcomes[index] = outcome
        del self.incoming[index]

    def drop_repeated(self, by: Literal["message_id", "idempotency_key"]) -> None:
        """Of several messages with the same id or key in one batch, the first is kept."""
        seen: set[str] = set()
        for index, one in list(self.incoming.items()):
            name = one.message_id if by == "message_id" else one.idempotency_key
            if name in seen:
                self.decide(index, SAME_MESSAGE if by == "message_id" else SAME_KEY)
            elif name is not None:
                seen.add(name)

    def inserted(self, index: int, one: Incoming, id: str) -> Accepted:
        """The outcome of a message whose row was inserted with this id."""
        if one.error is None:
            return New(id)
        return OutOfPartitions(id, one.error) if index in self.unpartitioned else Refused(id, one.error)
