"""The messages to consume: every second one is a copy of an earlier one. All hosts consume the same messages."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from outspark.inbox import Received

ID_HEADER = "X-Event-ID"
APART = 8
"""Batches between a message and its copy, so that no batch is likely to hold both."""


@dataclass(frozen=True, slots=True)
class Load:
    """One round. `messages` counts the copies too; `since`, in milliseconds, is the time in the ids."""

    messages: int
    payload: int
    keys: int
    batch: int
    since: int

    @property
    def different(self) -> int:
        return self.messages // 2

    def __iter__(self) -> Iterator[Received]:
        """Each message twice, in stretches: some that are new, then the same again."""
        stretch = APART * self.batch
        for first in range(0, self.different, stretch):
            numbers = range(first, min(first + stretch, self.different))
            for _ in range(2):
                for number in numbers:
                    yield self._message(number)

    def share(self, client: int, clients: int) -> Iterator[Received]:
        """The part of one of several clients: all messages of some keys, as a broker's partitions spread them."""
        for message in self:
            if zlib.crc32(message.key or b"") % clients == client:
                yield message

    def _message(self, number: int) -> Received:
        key = f"key-{number * 2_654_435_761 % 2**32 % self.keys}"
        return Received(
            topic="bench",
            body=_body(number, self.payload),
            headers=[(ID_HEADER, _id(number, self.since).encode())],
            key=key.encode(),
        )


def _id(number: int, since: int) -> str:
    """A UUID of version 7, fifty a millisecond, as `enqueue` makes them."""
    time = f"{since + number // 50:012x}"
    return f"{time[:8]}-{time[8:]}-7{number % 50:03x}-8000-{number:012x}"


def _body(number: int, size: int) -> bytes:
    start = f'{{"number": {number}, "text": "'
    room = max(size - len(start) - 2, 0)
    text = hashlib.md5(str(number).encode()).hexdigest() * (room // 32 + 1)
    return f'{start}{text[:room]}"}}'.encode()
