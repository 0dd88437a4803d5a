"""Sends one batch to Redis in chunks, reads one answer per message, and follows the redirects of a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from redis.exceptions import AskError, MovedError, ReadOnlyError, ResponseError

from outspark.brokers.redis.servers import Address, Node, Servers, address_in
from outspark.brokers.redis.wire import ASKING, Encoder, outcome
from outspark.errors import DestinationDown
from outspark.event import Message
from outspark.outcome import DELIVERED, Dead, Outcome, Retry

# Redis processes one chunk while the publisher encodes the next one and reads the answers to the previous one.
_CHUNK = 64 * 1024
_REDIRECTS = 5
_ON_THE_MOVE = Retry("the cluster is moving the stream", counted=False)


class Batch:
    """After `run`, `outcomes` has None for each message without an answer, and `down` is the reason.

    `wrong_server` is set if a replica answered, so that the publisher has to find the primary again.
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
        """Send the batch; DestinationError if no message can be sent as configured, such as with a wrong password."""
        self._servers.drop_stale()
        indexes: Iterable[int] = range(len(self._messages))
        for _ in range(1 + _REDIRECTS):
            self._send(indexes)
            indexes = sorted([*self._moved, *self._ask])
            if not indexes or self.down or time.monotonic() >= self._deadline:
                return
            if self._moved:
                self._update_slots()

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
        """Send the added commands to every server, then read answers; `but_last` skips those to this flush."""
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
        """Close the connection. Its unanswered messages keep None: the server may or may not have executed them."""
        self.down = error
        self._lost.add(address)
        if address is not None and address in self._nodes:
            self._nodes.pop(address).close()

    def _update_slots(self) -> None:
        moved, self._moved = self._moved, {}
        try:
            self._servers.update_slots(moved.values(), self._deadline)
        except DestinationDown as error:
            self.down = error
