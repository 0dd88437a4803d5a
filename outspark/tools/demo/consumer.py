"""The service at the other end, whatever the broker: it keeps what arrives, and drops an event that it knows."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

from outspark.tools.demo.proof import Fact


@dataclass(frozen=True, slots=True)
class Traffic:
    """The broker's own count of messages."""

    published: int
    """Sent by the relay, those that the broker dropped included."""
    stored: int
    """Kept by the broker; the consumer gets each of them."""


class Consumer(ABC):
    """Connected from construction to `close`; what it counts may be read from any thread."""

    def __init__(self) -> None:
        self.arrivals: list[Fact] = []
        """Every message in the order in which they came."""
        self.arrived_at: dict[str, float] = {}
        """When each event came first, by `time.time`."""

    def take(self, id: str, key: str, payload: bytes) -> None:
        """One message. By its id the consumer knows an event that it had before: only the first one counts."""
        self.arrived_at.setdefault(id, time.time())
        self.arrivals.append(Fact(id, key, _version(payload)))

    @abstractmethod
    def traffic(self) -> Traffic:
        """All that was published before this call is counted. Raises what ended the consumer before its time."""

    @abstractmethod
    def close(self) -> None: ...


def _version(payload: bytes) -> int:
    """0 for what the shop did not write."""
    try:
        data = json.loads(payload)
    except ValueError:
        return 0
    return int(data.get("version", 0)) if isinstance(data, dict) else 0
