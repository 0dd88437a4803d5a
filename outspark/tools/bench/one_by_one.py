"""The publisher that outboxes are often written with: send one message, await its answer, send the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outspark.brokers import Publisher
from outspark.delivery.destination import Destination
from outspark.event import Message
from outspark.outcome import Outcome


class OneByOne:
    """The same client as the publisher inside; only the batches are gone."""

    keeps_order = False
    keeps_headers = False

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        return [self._publisher.publish([message], timeout)[0] for message in messages]

    def check(self, timeout: float) -> None:
        self._publisher.check(timeout)

    def close(self) -> None:
        self._publisher.close()


def one_by_one(destinations: Mapping[str, Destination]) -> dict[str, Destination]:
    return {
        name: Destination(name, OneByOne(destination.publisher), destination.timeout)
        for name, destination in destinations.items()
    }
