"""One batch on its way to Redis: sent in chunks, answered message by message, redirected where a cluster says so."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from redis.exceptions import AskError, MovedError, ReadOnlyError, ResponseError

from outspark.brokers.redis.servers import Address, Node, Servers, address_in
from outspark.brokers.redis.wire import ASKING, Encoder, outcome
from outspark.errors import DestinationDown
from outspark.event import Message
from outspark.outcome import DELIVERED, Dead, Outcome, Retry

# Redis works on one chunk while we encode the next one and then read the answers to the one before.
_CHUNK = 64 * 1024
_REDIRECTS = 5
_ON_THE_MOVE = Retry("the cluster is moving the stream", counted=False)


class Batch:
    """After `run`, `outcomes` has None for each message that got no answer, and `down` says why.

    `wrong_server` tells that a replica answered, so that the master has to be looked for.
    """

    def __init__(
        self, messages: Sequence[Message], servers: Servers, encoder: Encoder, deadline: float
    ) -> None:
        self.outcomes: list[Outcome | None] = [None] * len(messages)
        self.down: DestinationDown | None = None
        self.wrong_server = False
        self._messages = messages
        self._servers = servers
        self._encoder = encoder
        self._deadline = deadline
        self._nodes: dict[Address, Node] = {}
        self._lost: set[Address | None] = set()
        self._moved: dict[int, MovedError] = {}
        self._ask: dict[int, Address] = {}

    def run(self) -> None:
        """Raises DestinationError when no message could be sent like this, such as with a wrong password."""
        self._servers.drop_stale()
        indexes: Iterable[int] = range(len(self._messages))
        for _ in range(1 + _REDIRECTS):
            self._send(indexes)
            indexes = sorted([*self._moved, *self._ask])
            if not indexes or self.down or time.monotonic() >= self._deadline:
                return
            if self._moved:
                self._learn()

    def _send(self, indexes: Iterable[int]) -> None:
        size = 0
        for index in indexes:
            command = self._encoder.encode(self._messages[index])
            if isinstance(command, Dead):
                self.outcomes[index] = command
                continue
            self._add(index, command)
            size += len(command)
            if size >= _CHUNK:
                size = 0
                self._exchange(but_last=True)
        self._exchange(but_last=False)

    def _add(self, index: int, command: bytes) -> None:
        asked = self._ask.pop(index, None)
        address = asked or self._servers.address_of(self._messages[index].topic)
        if address in self._lost:
            return
        try:
            found, node = self._servers.open(address, self._deadline)
        except DestinationDown as error:
            self._lose(address, error)
            return
        size = len(self._messages[index].payload)
        if size > node.max_value:
            self.outcomes[index] = Dead(
                f"payload of {size} bytes is over the server's proto-max-bulk-len of {node.max_value}"
            )
            return
        self._nodes[found] = node
        if asked is not None:
            node.add(None, ASKING)
        node.add(index, command)

    def _exchange(self, *, but_last: bool) -> None:
        """Send to every server what was added, then read what they answered to what was sent before."""
        for address, node in list(self._nodes.items()):
            try:
                node.flush(self._deadline)
            except DestinationDown as error:
                self._lose(address, error)
        for address, node in list(self._nodes.items()):
            try:
                for index, refusal in node.answers(self._deadline, but_last=but_last):
                    self.outcomes[index] = (
                        DELIVERED if refusal is None else self._refused(index, refusal, address)
                    )
            except DestinationDown as error:
                self._lose(address, error)

    def _refused(self, index: int, refusal: ResponseError, address: Address) -> Outcome:
        if isinstance(refusal, MovedError):
            self._moved[index] = refusal
            return _ON_THE_MOVE
        if isinstance(refusal, AskError):
            self._ask[index] = address_in(refusal, address)
            return _ON_THE_MOVE
        if isinstance(refusal, ReadOnlyError):
            self.wrong_server = True
        return outcome(refusal, self._messages[index].topic)

    def _lose(self, address: Address | None, error: DestinationDown) -> None:
        """Its unanswered messages keep None: nobody knows whether the server has them."""
        self.down = error
        self._lost.add(address)
        if address is not None and address in self._nodes:
            self._nodes.pop(address).close()

    def _learn(self) -> None:
        moved, self._moved = self._moved, {}
        try:
            self._servers.learn(moved.values(), self._deadline)
        except DestinationDown as error:
            self.down = error
