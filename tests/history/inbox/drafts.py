"""What a history publishes: messages whose body says what their handler is to do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Literal
from uuid import UUID

from outspark.brokers.feed import Received

BROKEN = "broken"


class Behaviour(StrEnum):
    """What becomes of an event. "First" means: no handler was called for it yet, in its group."""

    PASS = "pass"
    FAIL_FIRST = "fail first"
    NOT_NOW_FIRST = "not now first"
    ABORT_FIRST = "abort first"
    """Leaves the transaction aborted, and returns."""
    COMMIT_FIRST = "commit first"
    """Commits by itself, and then raises."""
    HANG_FIRST = "hang first"
    KILL_FIRST = "kill first"
    """Kills the process after its effect was written."""
    UNLOCK_FIRST = "unlock first"
    """Somebody takes the event away from its worker while the handler runs."""
    REFUSE_FIRST = "refuse first"
    """The database refuses its completion as long as it has no failed attempt."""
    DIE = "die"
    REJECT = "reject"
    POISON = "poison"
    """Kills the process whenever its handler is called."""
    BROKEN = "broken"
    """A body that is no JSON."""
    STRAY = "stray"
    """Made at a time that no partition covers; a table without partitions takes it."""


MUST_DIE: Final = (Behaviour.DIE, Behaviour.REJECT, Behaviour.POISON, Behaviour.BROKEN)

Kind = Literal["sync", "async", "slow"]
"""Which handler: one that may be slow has little time."""


@dataclass(frozen=True, slots=True)
class Draft:
    """One message. Without an `id` it is known by its place in the broker, so it must be published only once."""

    name: str
    behaviour: Behaviour = Behaviour.PASS
    key: str | None = None
    id: str | None = None
    idempotency_key: str | None = None
    kind: Kind = "sync"

    @property
    def body(self) -> bytes:
        if self.behaviour is Behaviour.BROKEN:
            return f"{BROKEN} {self.name}".encode()
        return json.dumps({"name": self.name, "do": self.behaviour}).encode()

    @property
    def headers(self) -> dict[str, str]:
        headers: dict[str, str] = {"event_type": self.kind}
        if self.id is not None:
            headers["X-Event-ID"] = self.id
        if self.idempotency_key is not None:
            headers["Idempotency-Key"] = self.idempotency_key
        return headers


def name_of(message: Received) -> str:
    body = message.body or b""
    if body.startswith(BROKEN.encode()):
        return body.decode().split()[1]
    name: str = json.loads(body)["name"]
    return name


def uuid7_of(number: int, ago: timedelta = timedelta(0)) -> str:
    """An id that was made so long ago; the number keeps those of one moment apart."""
    milliseconds = int((datetime.now(UTC) - ago).timestamp() * 1000)
    return str(UUID(int=milliseconds << 80 | 7 << 76 | 0b10 << 62 | number))
