"""The interface of every publisher: it takes a batch of messages and returns one outcome per message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outspark.event import Message
from outspark.outcome import Outcome


class Publisher(Protocol):
    """One connection to one destination, used by one lane at a time, from one thread.

    Construction does no I/O. `publish` connects on first use, and again after a loss.
    """

    keeps_order: bool
    """True if a failed message also fails every later message of its order key in the same batch, so that a lane may
    pass whole batches. If False, a lane publishes in waves with at most one message per order key."""
    keeps_headers: bool
    """True if the publisher sends the headers in `stored` as they are. If False, the messages passed to it have none:
    the lane converts them to text before, or does not send the message."""

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        """Send the messages in order and wait at most `timeout` seconds for the outcome of each.

        The result has one outcome per message, in order: Delivered, Retry or Dead, or Held for a message that was not
        sent because an earlier one of its key failed or the time was over. `publish` does not raise if the destination
        is down: those messages get `Retry(counted=False)`. It raises DestinationError only if the destination cannot
        be used at all as configured.
        """
        ...

    def check(self, timeout: float) -> None:
        """Check that the destination would accept a message now; DestinationDown or DestinationError if not."""
        ...

    def close(self) -> None:
        """Close the connection, if there is one."""
        ...
