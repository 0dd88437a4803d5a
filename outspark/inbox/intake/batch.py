"""A batch of messages on its way into an inbox, and what becomes of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from outspark.brokers.feed import Received
from outspark.inbox.intake.message import Incoming


@dataclass(frozen=True, slots=True)
class New:
    word: ClassVar[str] = "new"
    """For metrics."""
    id: str


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The group has it already, by its id or by an idempotency key that another message brought."""

    by: Literal["message_id", "idempotency_key"]

    @property
    def word(self) -> str:
        return "duplicate" if self.by == "message_id" else "duplicate_key"


SAME_MESSAGE, SAME_KEY = Duplicate("message_id"), Duplicate("idempotency_key")


@dataclass(frozen=True, slots=True)
class Refused:
    """It can never be handled, so it is kept as dead, with its body as it is."""

    word: ClassVar[str] = "refused"
    id: str
    error: str


@dataclass(frozen=True, slots=True)
class OutOfPartitions:
    """No partition holds its time. It is kept as dead in the present one, and may be requeued."""

    word: ClassVar[str] = "out_of_partitions"
    id: str
    error: str


Accepted = New | Duplicate | Refused | OutOfPartitions


@dataclass(slots=True)
class IncomingBatch:
    """Messages by their place in the batch: those that nothing is decided about, and outcomes of the others."""

    messages: Sequence[Received]
    incoming: dict[int, Incoming]
    outcomes: dict[int, Accepted] = field(default_factory=dict)
    strays: set[int] = field(default_factory=set)
    """Those whose own time no partition holds."""

    def check(self) -> None:
        """Find bodies that are no JSON; their messages are dead from the start."""
        self.incoming = {index: one.checked() for index, one in self.incoming.items()}

    def decide(self, index: int, outcome: Accepted) -> None:
        self.outcomes[index] = outcome
        del self.incoming[index]

    def drop_repeated(self, by: Literal["message_id", "idempotency_key"]) -> None:
        """Within a batch the first one counts."""
        seen: set[str] = set()
        for index, one in list(self.incoming.items()):
            name = one.message_id if by == "message_id" else one.idempotency_key
            if name in seen:
                self.decide(index, SAME_MESSAGE if by == "message_id" else SAME_KEY)
            elif name is not None:
                seen.add(name)

    def kept(self, index: int, one: Incoming, id: str) -> Accepted:
        """What a message is that has its row now, under this id."""
        if one.error is None:
            return New(id)
        return OutOfPartitions(id, one.error) if index in self.strays else Refused(id, one.error)
