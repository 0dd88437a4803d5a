"""The interface of every publisher: a batch goes in, one outcome per message comes back."""

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
    """True when a failed message also fails every later message of its order key in the same batch, so that a lane may
    hand over whole batches. Where it is False, a lane publishes in waves with at most one message per order key."""
    keeps_headers: bool
    """True when the headers in `stored` go out as they are. Where it is False, a message has none of them: a lane makes
    text of them before, or does not send the message at all."""

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        """Send the messages in order and wait for what became of each, at most `timeout` seconds.

        The answer has one outcome per message, in order: Delivered, Retry or Dead, or Held for one that was not sent
        because an earlier one of its key failed or the time was over. It does not raise for a destination that is
        down: those messages come back as `Retry(counted=False)`. It raises DestinationError only when the
        destination cannot be used as configured at all.
        """
        ...

    def check(self, timeout: float) -> None:
        """Prove that the destination would take a message now; DestinationDown (or DestinationError) when not."""
        ...

    def close(self) -> None:
        """Let go of the connection; harmless when there is none."""
        ...
