"""The demo on RabbitMQ: a topic exchange, and a queue that is bound to the shop's events.

A message leaves its queue once it is acknowledged. So a second queue with the same binding, which nobody reads, keeps
a copy of each and can be asked how many there were.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

from outspark.brokers.loop_thread import LoopThread
from outspark.brokers.rabbitmq.wire import PARTITION_KEY
from outspark.tools.demo.brokers.broker import Broker
from outspark.tools.demo.consumer import Consumer, Traffic
from outspark.tools.servers.rabbitmq import RabbitMQ, program

T = TypeVar("T")

EXCHANGE = "shop"
QUEUE, COPIES = "orders", "orders.copies"
BINDING = "order.#"
_AHEAD = 500
"""Messages that the server sends before the first of them is acknowledged."""
_TIMEOUT = 20.0

SETTINGS = """\
[destinations.rabbitmq]
type = "rabbitmq"
url = "{url}"

[destinations.rabbitmq.options]
exchange = "{exchange}"
"""


class RabbitMQBroker(Broker):
    name = "RabbitMQ"
    place = f"queue {QUEUE} ({BINDING} of the exchange {EXCHANGE})"

    def __init__(self) -> None:
        self._rabbitmq = RabbitMQ()
        super().__init__(self._rabbitmq)

    def find_server(self) -> None:
        program()

    @property
    def url(self) -> str:
        return self._rabbitmq.url

    @property
    def settings(self) -> str:
        return SETTINGS.format(url=self.url, exchange=EXCHANGE)

    def open_consumer(self) -> Consumer:
        return RabbitMQConsumer(self.url)


class RabbitMQConsumer(Consumer):
    def __init__(self, url: str) -> None:
        super().__init__()
        self._loop = LoopThread("demo-consumer")
        try:
            self._connection = self._run(self._connect(url))
        except BaseException:
            self._loop.stop()
            raise

    def traffic(self) -> Traffic:
        """Nothing is dropped: RabbitMQ does not look at the ids of messages."""
        stored = self._run(self._stored())
        return Traffic(published=stored, stored=stored)

    def close(self) -> None:
        self._run(self._connection.close())
        self._loop.stop()

    async def _connect(self, url: str) -> AbstractConnection:
        connection = await aio_pika.connect(url, timeout=_TIMEOUT)
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=_AHEAD)
        exchange = await channel.declare_exchange(EXCHANGE, aio_pika.ExchangeType.TOPIC, durable=True)
        self._copies = await channel.declare_queue(COPIES, exclusive=True)
        await self._copies.bind(exchange, BINDING)
        queue = await channel.declare_queue(QUEUE, durable=True)
        await queue.bind(exchange, BINDING)
        await queue.consume(self._take)
        return connection

    async def _take(self, message: AbstractIncomingMessage) -> None:
        # The client makes a task of each message, and those begin in order: nothing may be awaited before `take`.
        key = message.headers.get(PARTITION_KEY)
        self.take(message.message_id or "", key if isinstance(key, str) else "", message.body)
        await message.ack()

    async def _stored(self) -> int:
        return int((await self._copies.declare(timeout=_TIMEOUT)).message_count or 0)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work, _TIMEOUT)
