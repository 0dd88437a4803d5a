"""NATS JetStream: a stream with one subject. It writes to its files before it acknowledges, so a kill loses nothing;
a second message with the same id is acknowledged and dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import nats
from nats.js import JetStreamContext

from outspark.tools.servers.nats import Nats
from tests.history.brokers.served import ServedBroker, address
from tests.history.passing import SEND_HEADER
from tests.history.publisher import Address

T = TypeVar("T")
_TIMEOUT = 10.0


class NatsBroker(ServedBroker[Nats]):
    def __init__(self) -> None:
        super().__init__(Nats())

    def open_topic(self, topic: str) -> Address:
        async def create(jetstream: JetStreamContext) -> None:
            await jetstream.add_stream(name=topic, subjects=[topic])

        self._run(create)
        return address("nats", topic, url=self.server.url)

    def arrivals(self, topic: str) -> list[str]:
        async def read(jetstream: JetStreamContext) -> list[str]:
            count = (await jetstream.stream_info(topic)).state.messages
            subscription = await jetstream.subscribe(topic, ordered_consumer=True)
            messages = [await subscription.next_msg(timeout=_TIMEOUT) for _ in range(count)]
            return [(message.headers or {})[SEND_HEADER] for message in messages]

        return self._run(read)

    def _run(self, work: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        async def run() -> T:
            client = await nats.connect(self.server.url)
            try:
                return await work(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(run())
