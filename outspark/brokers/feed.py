"""A broker as an inbox reads from it: `Feed` is the interface, `Received` one message, the same for every broker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

log = logging.getLogger(__name__)


class Outage:
    def __init__(self, group: str) -> None:
        self._group = group
        self._on = False
        self._waited_for: set[str] = set()

    def begin(self, error: str) -> None:
        """`error` without secrets."""
        if not self._on:
            self._on = True
            log.warning("broker unreachable, retrying", extra={"group": self._group, "error": error})

    def end(self) -> None:
        if self._on:
            self._on = False
            log.info("broker reachable again", extra={"group": self._group})

    def wait_for(self, what: str) -> None:
        """Something is not there yet and may come; once for each."""
        if what not in self._waited_for:
            self._waited_for.add(what)
            log.warning(
                "the feed waits for a topic or stream that does not exist yet",
                extra={"group": self._group, "missing": what},
            )


class Feed(Protocol):
    """A broker as a consumer sees it. For one thread at a time.

    FeedFailed from any of these means that the feed starts anew, from `commit` that it may: what was not committed
    comes again.
    """

    def poll(self, limit: int, timeout: float) -> Sequence[Received]:
        """The next messages, at most `limit`, waiting for the first at most `timeout` seconds.

        None while the broker is away for a while; FeedFailed where it refuses us. To be called again before long, or
        `hold` instead, because that is how the broker knows that we are there.
        """
        ...

    def hold(self, timeout: float) -> None:
        """Take nothing for `timeout` seconds, and keep what was polled and is not committed."""
        ...

    def commit(self, messages: Sequence[Received]) -> None:
        """Tell the broker that these messages, and those before them in their partitions, need not come again.

        FeedFailed when it could not be told; it is tried once more with the next call of anything. Where that fails
        too they come again and are found to be duplicates. What is somebody else's by now is passed over in silence.
        """
        ...

    def commit_soon(self, messages: Sequence[Received]) -> None:
        """The same without waiting for the broker: when it could not be told, a later call says so."""
        ...

    def owns(self, message: Received) -> bool:
        """Would a commit still count? Not where the partition was taken away since, even if it came back."""
        ...

    def check(self, timeout: float) -> None:
        """FeedFailed with the reason when the broker, or what is to be read from it, cannot be reached."""
        ...

    def close(self) -> None:
        """Leave in good order. Harmless when it is closed; whoever polls opens it again."""
        ...


@dataclass(slots=True)
class Received:
    """One message as a broker handed it over."""

    topic: str
    """Topic or subject."""
    body: bytes | None
    """None and empty are the same: a message that says nothing but that it is there."""
    headers: Iterable[tuple[str, bytes | str | None]] = ()
    key: bytes | None = None
    timestamp: datetime | None = None
    """When the broker got it, by its own account; the same on every redelivery."""
    log: str | None = None
    """Whose `partition` and `offset` these are: the stream, where that is not the topic."""
    partition: int = 0
    offset: int = 0
    handle: Any = None
    """The broker's own object, for whoever acknowledges it."""
