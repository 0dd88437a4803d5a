"""The demo on NATS: a JetStream stream on the shop's subjects, read with a durable consumer.

The inbox has a durable consumer of its own. Beside them a plain subscription listens to what is published.
JetStream drops a message whose id it knows, but a plain subscriber sees it, and so the demo can tell what was sent
twice although nothing arrived twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from outspark.brokers.loop_thread import LoopThread
from outspark.brokers.nats.wire import MESSAGE_ID, PARTITION_KEY
from outspark.tools.demo.brokers.broker import Broker
from outspark.tools.demo.consumer import Consumer, Traffic
from outspark.tools.servers.nats import Nats, program

T = TypeVar("T")

STREAM = "ORDERS"
SUBJECTS = "order.>"
_TIMEOUT = 10.0
_POLL = 0.01

SETTINGS = """\
[destinations.nats]
type = "nats"
url = "{url}"
"""
FEED = """\
type = "nats"
url = "{url}"
topics = ["{subjects}"]
"""


class NatsBroker(Broker):
    name = "NATS"
    place = f"stream {STREAM} ({SUBJECTS})"
    drops_known_ids = True
    has_feed = True

    def __init__(self) -> None:
        self._nats = Nats()
        super().__init__(self._nats)

    def find_server(self) -> None:
        program()

    @property
    def url(self) -> str:
        return self._nats.url

    @property
    def settings(self) -> str:
        return SETTINGS.format(url=self.url)

    @property
    def feed(self) -> str:
        return FEED.format(url=self.url, subjects=SUBJECTS)

    def open_consumer(self) -> Consumer:
        return NatsConsumer(self.url)


class NatsConsumer(Consumer):
    def __init__(self, url: str) -> None:
        super().__init__()
        self._published = 0
        self._loop = LoopThread("demo-consumer")
        try:
            self._client = self._run(self._connect(url))
        except BaseException:
            self._loop.stop()
            raise

    def traffic(self) -> Traffic:
        return self._run(self._traffic())

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.stop()

    async def _connect(self, url: str) -> Client:
        client = await nats.connect(url, name="demo consumer", connect_timeout=_TIMEOUT)
        jetstream = client.jetstream(timeout=_TIMEOUT)
        await jetstream.add_stream(name=STREAM, subjects=[SUBJECTS])
        self._ear = await client.subscribe(SUBJECTS, cb=self._overhear)
        await jetstream.subscribe(SUBJECTS, stream=STREAM, durable="counter", cb=self._take, manual_ack=True)
        return client

    async def _overhear(self, message: Msg) -> None:
        self._published += 1

    async def _take(self, message: Msg) -> None:
        headers = message.headers or {}
        self.take(headers.get(MESSAGE_ID, ""), headers.get(PARTITION_KEY, ""), message.data)
        await message.ack()

    async def _traffic(self) -> Traffic:
        await self._client.flush(round(_TIMEOUT))
        while self._ear.pending_msgs:
            await asyncio.sleep(_POLL)
        info = await self._client.jetstream(timeout=_TIMEOUT).stream_info(STREAM)
        return Traffic(published=self._published, stored=int(info.state.messages))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work, _TIMEOUT)
