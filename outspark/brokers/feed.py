"""The interface through which an inbox consumes from a broker: `Feed`, and `Received`, one message of any broker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

log = logging.getLogger(__name__)


class Outage:
    """Logs the begin and the end of an outage once each, however often the feed reports them."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._on = False
        self._waited_for: set[str] = set()

    def begin(self, error: str) -> None:
        """`error` must contain no secrets."""
        if not self._on:
            self._on = True
            log.warning("broker unreachable, retrying", extra={"group": self._group, "error": error})

    def end(self) -> None:
        if self._on:
            self._on = False
            log.info("broker reachable again", extra={"group": self._group})

    def wait_for(self, what: str) -> None:
        """Log, once for each name, that the feed waits for a topic or stream that does not exist yet."""
        if what not in self._waited_for:
            self._waited_for.add(what)
            log.warning(
                "the feed waits for a topic or stream that does not exist yet",
                extra={"group": self._group, "missing": what},
            )


class Feed(Protocol):
    """A consumer's connection to a broker, used by one thread at a time.

    After FeedFailed the feed connects anew, and the broker redelivers every message that was not committed. `commit`
    may raise FeedFailed although the broker stored the commit.
    """

    def poll(self, limit: int, timeout: float) -> Sequence[Received]:
        """Return at most `limit` messages, after waiting at most `timeout` seconds for the first.

        The answer is empty while the broker cannot be reached; FeedFailed if it refuses the consumer. The caller must
        keep calling `poll` or `hold`, because the broker takes a consumer that does not call for dead.
        """
        ...

    def hold(self, timeout: float) -> None:
        """Receive nothing for `timeout` seconds, but keep the membership and all uncommitted messages."""
        ...

    def commit(self, messages: Sequence[Received]) -> None:
        """Acknowledge these messages and, with Kafka, all messages before them in their partitions.

        FeedFailed if the broker did not confirm; the feed tries again with the next call of any method. If that fails
        too, the broker redelivers the messages and the inbox finds them to be duplicates. Messages of partitions that
        belong to another consumer by now are skipped silently.
        """
        ...

    def commit_soon(self, messages: Sequence[Received]) -> None:
        """Acknowledge without waiting for the broker's answer; a later call raises the error, if there is one."""
        ...

    def owns(self, message: Received) -> bool:
        """Whether a commit of the message would count: False once its partition was revoked, even if it came back."""
        ...

    def check(self, timeout: float) -> None:
        """Raise FeedFailed with the reason if the broker or the topics cannot be reached."""
        ...

    def close(self) -> None:
        """Leave the group in an orderly way. A second `close` does nothing; the next `poll` connects again."""
        ...


@dataclass(slots=True)
class Received:
    """One message as the broker delivered it."""

    topic: str
    """Topic or subject."""
    body: bytes | None
    """None and empty mean the same: a message without content."""
    headers: Iterable[tuple[str, bytes | str | None]] = ()
    key: bytes | None = None
    timestamp: datetime | None = None
    """When the broker stored it, by the broker's clock; the same on every redelivery."""
    log: str | None = None
    """What `partition` and `offset` refer to: the stream, or None for the topic."""
    partition: int = 0
    offset: int = 0
    handle: Any = None
    """What the feed needs to acknowledge the message."""
