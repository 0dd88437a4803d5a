"""In which order the messages of a batch may go out side by side: at most one of a key, the earliest first."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from outspark.errors import DestinationDown, DestinationError
from outspark.event import Message
from outspark.outcome import DELIVERED, HELD, Outcome, Retry


class Batch:
    """Which message goes next. A key whose message was not delivered gets no other one of this batch."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.stopped: DestinationError | None = None
        self._outcomes: list[Outcome | None] = [None] * len(messages)
        self._ready: list[int] = []
        self._next: dict[int, int] = {}
        last: dict[str, int] = {}
        for index, message in enumerate(messages):
            if message.order_key is None or message.order_key not in last:
                self._ready.append(index)
            else:
                self._next[last[message.order_key]] = index
            if message.order_key is not None:
                last[message.order_key] = index

    def take(self) -> int | None:
        """None when nothing may be started now; what is in flight may yet free more, for its own worker."""
        return heapq.heappop(self._ready) if self._ready and self.stopped is None else None

    def settle(self, index: int, outcome: Outcome) -> None:
        self._outcomes[index] = outcome
        if outcome is DELIVERED and index in self._next:
            heapq.heappush(self._ready, self._next[index])

    def stop(self, error: DestinationError) -> None:
        self.stopped = self.stopped or error

    def outcomes(self) -> list[Outcome]:
        """What was never sent is Held, or waits for a destination that is down: neither costs an attempt."""
        if self.stopped is None:
            unsent: Outcome = HELD
        elif isinstance(self.stopped, DestinationDown) or any(self._outcomes):
            unsent = Retry(str(self.stopped), counted=False)
        else:
            raise self.stopped
        return [known or unsent for known in self._outcomes]
