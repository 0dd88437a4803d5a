"""What the tests of the Redis publisher share: a stream of its own per test, read by the plain client."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis import Redis as Client

from outspark.brokers import Publisher
from outspark.event import Message
from outspark.outcome import Dead, Outcome, Retry
from outspark.tools.servers.redis import Redis
from tests.integration.brokers.contract import Received, open_destination

SECRET = "s3cr3t-pw"


class RedisRig:
    """A stream of its own on a server, which wants the secret as its password."""

    secret = SECRET
    max_payload = 1024 * 1024

    def __init__(self, server: Redis) -> None:
        self.server = server
        self.topic = f"order.created.{uuid.uuid4().hex}"
        self._publishers: list[Publisher] = []

    def open(self, **options: Any) -> Publisher:
        return self.open_at(self.server.url, **options)

    def open_at(self, url: str, **options: Any) -> Publisher:
        publisher = open_destination("redis", url=url, max_payload=self.max_payload, options=options)
        self._publishers.append(publisher)
        return publisher

    def read(self, topic: str | None = None) -> list[Received]:
        return read(self.server, topic or self.topic)

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.server.kill()

    def close(self) -> None:
        for publisher in self._publishers:
            publisher.close()


@contextmanager
def client(server: Redis) -> Iterator[Any]:
    with Client.from_url(server.url, protocol=2) as found:
        yield found


def command(server: Redis, *words: Any) -> Any:
    with client(server) as found:
        return found.execute_command(*words)


def read(server: Redis, topic: str) -> list[Received]:
    with client(server) as found:
        return [_received(topic, fields) for _, fields in found.xrange(topic)]


def _received(topic: str, fields: dict[bytes, bytes]) -> Received:
    text = {name.decode(): value for name, value in fields.items()}
    key = text.pop("partition_key", None)
    event_id, payload = text.pop("id").decode(), text.pop("payload")
    headers = {name.removeprefix("h:"): value.decode() for name, value in text.items()}
    assert all(name.startswith("h:") for name in text)
    return Received(event_id, topic, None if key is None else key.decode(), payload, headers)


def message_to(topic: str, payload: bytes = b"{}", key: str | None = "k") -> Message:
    return Message(str(uuid.uuid4()), topic, key, payload, {}, key)


def error_of(outcome: Outcome) -> str:
    assert isinstance(outcome, Retry | Dead), outcome
    return outcome.error
