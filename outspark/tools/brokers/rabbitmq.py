"""RabbitMQ: quorum queues, counted by a passive declare.

A message leaves its queue once it is acknowledged. A consumer therefore has a second queue with the same binding,
which is never read: it keeps a copy of each message.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

from outspark.brokers.rabbitmq.wire import PARTITION_KEY
from outspark.errors import OutsparkError
from outspark.tools.brokers.broker import Broker
from outspark.tools.brokers.consumer import TIMEOUT, Consumer, LoopConsumer, Take
from outspark.tools.servers.rabbitmq import RabbitMQ, program

# RabbitMQ recommends quorum queues for messages that must not get lost; a classic queue takes twice the CPU time.
KIND: dict[str, Any] = {"x-queue-type": "quorum"}
EXCHANGE = "shop"
_AHEAD = 500
"""Messages that the server sends before the first of them is acknowledged."""


class RabbitMQBroker(Broker):
    name = "rabbitmq"
    title = "RabbitMQ"

    def __init__(self) -> None:
        super().__init__(RabbitMQ(), program)

    def create(self, topic: str, events: str | None = None) -> None:
        """Behind the default exchange, or bound to the types of `events` at EXCHANGE."""
        asyncio.run(self._declare(topic, events))

    def count(self, topic: str) -> int:
        return asyncio.run(self._declare(topic, passive=True))

    def open_consumer(self, topic: str, events: str, take: Take) -> Consumer:
        copies = f"{topic}.copies"
        for queue in (topic, copies):
            self.create(queue, events)
        return RabbitMQConsumer(self, topic, copies, take)

    def describe(self, topic: str, events: str) -> str:
        return f"queue {topic} ({events}.# of the exchange {EXCHANGE})"

    def routing(self, topic: str) -> str:
        return f'\n[destinations.{self.name}.options]\nexchange = "{EXCHANGE}"\n'

    async def _declare(self, topic: str, events: str | None = None, *, passive: bool = False) -> int:
        """Messages in the queue."""
        async with await aio_pika.connect(self.url, timeout=TIMEOUT) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(topic, durable=True, passive=passive, arguments=KIND)
            count = queue.declaration_result.message_count
            if events is not None:
                exchange = await channel.declare_exchange(EXCHANGE, aio_pika.ExchangeType.TOPIC, durable=True)
                await queue.bind(exchange, f"{events}.#")
        if count is None:
            raise OutsparkError(f"RabbitMQ does not say what the queue {topic} holds")
        return count


class RabbitMQConsumer(LoopConsumer):
    def __init__(self, broker: RabbitMQBroker, topic: str, copies: str, take: Take) -> None:
        super().__init__(broker, copies, take)
        self._start(self._consume(broker.url, topic))

    async def _consume(self, url: str, topic: str) -> AbstractConnection:
        connection = await aio_pika.connect(url, timeout=TIMEOUT)
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=_AHEAD)
        queue = await channel.get_queue(topic)
        await queue.consume(self._receive)
        return connection

    async def _receive(self, message: AbstractIncomingMessage) -> None:
        # The client makes a task of each message, and tasks begin in order: nothing may be awaited before `_take`.
        key = message.headers.get(PARTITION_KEY)
        self._take(message.message_id or "", key if isinstance(key, str) else "", message.body)
        await message.ack()
