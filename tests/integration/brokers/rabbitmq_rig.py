"""A RabbitMQ for the tests of its publisher: users with and without rights, a queue for each test, and a reader."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, ExchangeType

from outspark.brokers import Publisher
from outspark.tools.servers.rabbitmq import RabbitMQ
from tests.integration.brokers.contract import TIMEOUT, Received, open_destination

T = TypeVar("T")

EVENT_ID, PARTITION_KEY = "X-Event-ID", "X-Partition-Key"
SECRET = "s3cr3t-pw"
MAX_MESSAGE_SIZE = 1024 * 1024
WRITTEN_WITHIN = 5.0
"""Seconds after which RabbitMQ has written down that there is a queue; its log of such things is buffered for two."""


class RabbitMQRig:
    """A queue of its own on a server, bound by the default exchange to the topic of its name."""

    secret = SECRET
    max_payload = MAX_MESSAGE_SIZE

    def __init__(self, server: RabbitMQ, **arguments: Any) -> None:
        self.server = server
        self.topic = f"order.created.{uuid.uuid4().hex}"
        self.messages: list[AbstractIncomingMessage] = []
        self._publishers: list[Publisher] = []

        async def declare(channel: AbstractChannel) -> None:
            await channel.declare_queue(self.topic, durable=True, arguments=arguments)

        on_channel(server, declare)
        self._declared = time.monotonic()

    def url(self, user: str = "relay", password: str = SECRET) -> str:
        return self.server.url.replace("guest:guest", f"{user}:{password}")

    def open(self, **settings: Any) -> Publisher:
        given: dict[str, Any] = {"url": self.url(), "max_payload": self.max_payload, **settings}
        publisher = open_destination("rabbitmq", **given)
        self._publishers.append(publisher)
        return publisher

    def bind(self, kind: ExchangeType, routing_key: str) -> str:
        """A new exchange, bound to the queue."""
        name = f"exchange.{uuid.uuid4().hex}"

        async def bind(channel: AbstractChannel) -> None:
            exchange = await channel.declare_exchange(name, kind, durable=True)
            queue = await channel.get_queue(self.topic)
            await queue.bind(exchange, routing_key)

        on_channel(self.server, bind)
        return name

    def count(self) -> int:
        """How many messages are ready in the queue."""

        async def count(channel: AbstractChannel) -> int:
            queue = await channel.get_queue(self.topic)
            return queue.declaration_result.message_count or 0

        return on_channel(self.server, count)

    def read(self) -> list[Received]:
        """Takes what is in the queue and remembers it."""

        async def take(channel: AbstractChannel) -> None:
            queue = await channel.get_queue(self.topic)
            left = queue.declaration_result.message_count or 0
            if not left:
                return
            async with queue.iterator(no_ack=True, timeout=TIMEOUT) as arriving:
                async for message in arriving:
                    self.messages.append(message)
                    left -= 1
                    if not left:
                        break

        on_channel(self.server, take)
        return [_received(message) for message in self.messages]

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.await_disk()
        self.server.kill()

    def await_disk(self) -> None:
        """Until the queue is on disk: whoever made it was answered earlier."""
        time.sleep(max(self._declared + WRITTEN_WITHIN - time.monotonic(), 0.0))

    def close(self) -> None:
        for publisher in self._publishers:
            publisher.close()


def on_channel(server: RabbitMQ, work: Callable[[AbstractChannel], Awaitable[T]]) -> T:
    async def run() -> T:
        async with await aio_pika.connect(server.url) as connection:
            return await work(await connection.channel())

    return asyncio.run(run())


def _received(message: AbstractIncomingMessage) -> Received:
    headers = {name: str(value) for name, value in message.headers.items()}
    assert headers.pop(EVENT_ID) == message.message_id
    key = headers.pop(PARTITION_KEY, None)
    return Received(message.message_id or "", message.routing_key or "", key, message.body, headers)


def write_definitions(path: Path, passwords: Mapping[str, str] | None = None) -> dict[str, str]:
    """Users besides guest, as an option of the server.

    `relay` may do all; `reader` may write to no exchange; `clerk` may write to any, but in `amq.topic` only to
    routing keys that begin with `open`, and not to the default one.
    """
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    rights = {
        "guest": everything,
        "relay": everything,
        "reader": {**everything, "write": "^$"},
        "clerk": {**everything, "write": r"^amq\.topic$"},
    }
    given = {**dict.fromkeys(rights, SECRET), "guest": "guest", **(passwords or {})}
    definitions = {
        "vhosts": [{"name": "/"}],
        "users": [
            {"name": name, "password_hash": _hash(password), "tags": "administrator"}
            for name, password in given.items()
        ],
        "permissions": [{"user": name, "vhost": "/", **allowed} for name, allowed in rights.items()],
        "topic_permissions": [
            {"user": "clerk", "vhost": "/", "exchange": "amq.topic", "write": "^open", "read": ".*"}
        ],
    }
    path.write_text(json.dumps(definitions))
    return {"load_definitions": str(path)}


def _hash(password: str) -> str:
    salt = b"salt"
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
