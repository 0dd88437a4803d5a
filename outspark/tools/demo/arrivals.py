"""What the service at the other end keeps of the messages that arrive. The service drops an event that it knows."""

from __future__ import annotations

import json
import time

from outspark.tools.demo.proof import Fact


class Arrivals:
    """Written by the consumer's thread; any thread may read it."""

    def __init__(self) -> None:
        self.all: list[Fact] = []
        """Every message in the order of arrival."""
        self.first_at: dict[str, float] = {}
        """When each event arrived first, by `time.time`."""

    def take(self, id: str, key: str, payload: bytes) -> None:
        """One message. The service knows by the id whether it had the event before: only the first one counts."""
        self.first_at.setdefault(id, time.time())
        self.all.append(Fact(id, key, _version(payload)))


def _version(payload: bytes) -> int:
    """0 for what the shop did not write."""
    try:
        data = json.loads(payload)
    except ValueError:
        return 0
    return int(data.get("version", 0)) if isinstance(data, dict) else 0
