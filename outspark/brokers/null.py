"""A publisher that reports every message as delivered and sends nothing, for benchmarks and to try configurations."""

from __future__ import annotations

from collections.abc import Sequence

from outspark.event import Message
from outspark.outcome import DELIVERED, Outcome


class NullPublisher:
    keeps_order = True
    keeps_headers = True

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        return [DELIVERED] * len(messages)

    def check(self, timeout: float) -> None:
        return

    def close(self) -> None:
        return
