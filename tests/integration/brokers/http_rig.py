"""A webhook destination for one test: a path of its own on a receiver."""

from __future__ import annotations

import uuid
from typing import Any

from outspark.brokers import Publisher
from tests.integration.brokers.contract import Received, open_destination
from tests.integration.brokers.receiver import Arrival, Receiver

_OURS = {
    *("host", "content-length", "content-type", "user-agent", "authorization"),
    *("x-event-id", "x-event-topic", "x-partition-key"),
    *("webhook-id", "webhook-timestamp", "webhook-signature"),
}


class HttpRig:
    """The URL, a header and the signature carry secrets that the receiver does not ask for."""

    topic = "order.created"
    secret = "s3cr3t-pw"
    max_payload = 100_000

    def __init__(self, receiver: Receiver, **options: Any) -> None:
        self.receiver = receiver
        self.path = f"/{uuid.uuid4().hex}/{self.secret}"
        self._options = options
        self._publishers: list[Publisher] = []

    def open(self, url: str | None = None, **options: Any) -> Publisher:
        default = self.receiver.url.replace("//", f"//user:{self.secret}@") + self.path
        own = {
            "allow_private": True,
            "secret": self.secret,
            "headers": {"Authorization": f"Bearer {self.secret}"},
        }
        publisher = open_destination(
            "http",
            url=url or default,
            max_payload=self.max_payload,
            options={**own, **self._options, **options},
        )
        self._publishers.append(publisher)
        return publisher

    def arrivals(self) -> list[Arrival]:
        return self.receiver.received(self.path)

    def ids(self) -> list[str]:
        return [arrival.id for arrival in self.arrivals()]

    def read(self) -> list[Received]:
        return [_received(arrival) for arrival in self.arrivals()]

    def start(self) -> None:
        self.receiver.start()

    def stop(self) -> None:
        self.receiver.stop()

    def kill(self) -> None:
        self.receiver.kill()

    def close(self) -> None:
        for publisher in self._publishers:
            publisher.close()


def _received(arrival: Arrival) -> Received:
    headers = arrival.headers
    others = {name: value for name, value in headers.items() if name not in _OURS}
    return Received(
        arrival.id, headers["x-event-topic"], headers.get("x-partition-key"), arrival.body, others
    )
