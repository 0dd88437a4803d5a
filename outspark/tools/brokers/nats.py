"""NATS: a JetStream stream on disk for each topic, read with a durable consumer.

JetStream drops a message whose id it knows, but a plain subscriber sees that message. The consumer has such a
subscription too, so that it can count what was sent twice although nothing arrived twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from outspark.brokers.nats.wire import MESSAGE_ID, PARTITION_KEY
from outspark.tools.brokers.broker import Broker
from outspark.tools.brokers.consumer import TIMEOUT, Consumer, LoopConsumer, Take, Traffic
from outspark.tools.servers.nats import Nats, program

T = TypeVar("T")

_POLL = 0.01


class NatsBroker(Broker):
    name = "nats"
    title = "NATS"
    drops_known_ids = True
    has_feed = True

    def __init__(self) -> None:
        super().__init__(Nats(), program)

    def create(self, topic: str, events: str | None = None) -> None:
        subject = topic if events is None else self.feed_topic(topic, events)
        self._ask(lambda jetstream: jetstream.add_stream(name=topic.upper(), subjects=[subject]))

    def count(self, topic: str) -> int:
        return self._ask(lambda jetstream: jetstream.stream_info(topic.upper())).state.messages

    def open_consumer(self, topic: str, events: str, take: Take) -> Consumer:
        self.create(topic, events)
        return NatsConsumer(self, topic, self.feed_topic(topic, events), take)

    def describe(self, topic: str, events: str) -> str:
        return f"stream {topic.upper()} ({self.feed_topic(topic, events)})"

    def routing(self, topic: str) -> str:
        return ""

    def feed_topic(self, topic: str, events: str) -> str:
        return f"{events}.>"

    def _ask(self, question: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        async def ask() -> T:
            client = await _connect(self.url)
            try:
                return await question(client.jetstream(timeout=TIMEOUT))
            finally:
                await client.close()

        return asyncio.run(ask())


class NatsConsumer(LoopConsumer):
    def __init__(self, broker: NatsBroker, topic: str, subject: str, take: Take) -> None:
        super().__init__(broker, topic, take)
        self._published = 0
        self._start(self._subscribe(broker.url, topic.upper(), subject))

    def traffic(self) -> Traffic:
        return Traffic(published=self._run(self._count_published()), stored=super().traffic().stored)

    async def _subscribe(self, url: str, stream: str, subject: str) -> Client:
        self._client = await _connect(url)
        self._plain = await self._client.subscribe(subject, cb=self._count_one)
        jetstream = self._client.jetstream(timeout=TIMEOUT)
        await jetstream.subscribe(
            subject, stream=stream, durable="counter", cb=self._receive, manual_ack=True
        )
        return self._client

    async def _count_one(self, message: Msg) -> None:
        self._published += 1

    async def _receive(self, message: Msg) -> None:
        headers = message.headers or {}
        self._take(headers.get(MESSAGE_ID, ""), headers.get(PARTITION_KEY, ""), message.data)
        await message.ack()

    async def _count_published(self) -> int:
        await self._client.flush(round(TIMEOUT))
        while self._plain.pending_msgs:
            await asyncio.sleep(_POLL)
        return self._published


async def _connect(url: str) -> Client:
    return await nats.connect(url, name="broker consumer", connect_timeout=TIMEOUT)
