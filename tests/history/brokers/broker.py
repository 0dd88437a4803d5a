"""What a history needs of a real broker: a topic of its own, stops and starts, and what arrived in the end."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tests.history.publisher import Address


class Broker(ABC):
    """Running from `start` to `close`, for many histories. Nothing that it acknowledged is lost by a `kill`."""

    @abstractmethod
    def open_topic(self, topic: str) -> Address:
        """Make the topic, with one order for all that arrives in it."""

    @abstractmethod
    def arrivals(self, topic: str) -> list[str]:
        """The names of the sendings whose messages are in the topic, in its order, doubles included."""

    @abstractmethod
    def start(self) -> None:
        """Returns when it takes messages; harmless when it does already."""

    @abstractmethod
    def stop(self) -> None:
        """In good order."""

    @abstractmethod
    def kill(self) -> None:
        """At once, in the middle of whatever it does."""

    @abstractmethod
    def close(self) -> None:
        """For good."""
