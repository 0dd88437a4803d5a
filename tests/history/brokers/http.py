"""A webhook receiver: it writes down each request before it answers, into a file that survives it."""

from __future__ import annotations

from tests.history.brokers.served import ServedBroker, address
from tests.history.passing import SEND_HEADER
from tests.history.publisher import Address
from tests.integration.brokers.receiver import Receiver


class HttpBroker(ServedBroker[Receiver]):
    def __init__(self) -> None:
        super().__init__(Receiver())

    def open_topic(self, topic: str) -> Address:
        # The address of the receiver is a private one.
        options = {"allow_private": True}
        return address("http", topic, url=f"{self.server.url}/{{topic}}", options=options)

    def arrivals(self, topic: str) -> list[str]:
        return [arrival.headers[SEND_HEADER] for arrival in self.server.received(f"/{topic}")]
