"""RabbitMQ: a durable queue behind the default exchange. It confirms a persistent message once its files have it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import aio_pika
from aio_pika.abc import AbstractChannel

from outspark.tools.servers.rabbitmq import RabbitMQ
from tests.history.brokers.served import ServedBroker, address
from tests.history.passing import SEND_HEADER
from tests.history.publisher import Address

T = TypeVar("T")


class RabbitMQBroker(ServedBroker[RabbitMQ]):
    def __init__(self) -> None:
        super().__init__(RabbitMQ())

    def open_topic(self, topic: str) -> Address:
        async def declare(channel: AbstractChannel) -> None:
            await channel.declare_queue(topic, durable=True)

        self._run(declare)
        return address("rabbitmq", topic, url=self.server.url)

    def arrivals(self, topic: str) -> list[str]:
        async def read(channel: AbstractChannel) -> list[str]:
            queue = await channel.get_queue(topic)
            sends = []
            # Not acknowledged, so all of it goes back to its place in the queue when the connection ends.
            while (message := await queue.get(fail=False)) is not None:
                sends.append(str(message.headers[SEND_HEADER]))
            return sends

        return self._run(read)

    def _run(self, work: Callable[[AbstractChannel], Awaitable[T]]) -> T:
        async def run() -> T:
            connection = await aio_pika.connect(self.server.url)
            async with connection:
                return await work(await connection.channel())

        return asyncio.run(run())
