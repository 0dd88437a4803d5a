"""The service at the other end: it reads the stream with a durable consumer and keeps what arrives.

Beside it a plain subscription listens to what is published. JetStream drops a message whose id it knows, but a
plain subscriber sees it, and so the demo can tell what was sent twice although nothing arrived twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from outspark.demo.proof import Fact
from outspark.publishers.loop_thread import LoopThread
from outspark.publishers.nats_wire import MESSAGE_ID, PARTITION_KEY

T = TypeVar("T")

STREAM = "ORDERS"
_TIMEOUT = 10.0


class Consumer:
    """Connected from construction to `close`; what it counts may be read from any thread."""

    def __init__(self, url: str, subjects: str) -> None:
        self.arrivals: list[Fact] = []
        self.arrived_at: dict[str, float] = {}
        """When each event came first, by `time.time`."""
        self.published = 0
        """Messages on the wire, those that JetStream dropped included."""
        self._loop = LoopThread("demo-consumer")
        try:
            self._client = self._run(self._connect(url, subjects))
        except BaseException:
            self._loop.stop()
            raise

    def stored(self) -> int:
        """Messages in the stream. All that was published before this call has been counted after it."""
        return self._run(self._stored())

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.stop()

    async def _connect(self, url: str, subjects: str) -> Client:
        client = await nats.connect(url, name="demo consumer", connect_timeout=_TIMEOUT)
        jetstream = client.jetstream(timeout=_TIMEOUT)
        await jetstream.add_stream(name=STREAM, subjects=[subjects])
        await client.subscribe(subjects, cb=self._overhear)
        await jetstream.subscribe(subjects, stream=STREAM, durable="counter", cb=self._take, manual_ack=True)
        return client

    async def _overhear(self, message: Msg) -> None:
        self.published += 1

    async def _take(self, message: Msg) -> None:
        headers = message.headers or {}
        id = headers.get(MESSAGE_ID, "")
        self.arrived_at.setdefault(id, time.time())
        self.arrivals.append(Fact(id, headers.get(PARTITION_KEY, ""), _version(message.data)))
        await message.ack()

    async def _stored(self) -> int:
        await self._client.flush(round(_TIMEOUT))
        info = await self._client.jetstream(timeout=_TIMEOUT).stream_info(STREAM)
        return int(info.state.messages)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work, _TIMEOUT)


def _version(payload: bytes) -> int:
    """0 for what the shop did not write."""
    try:
        data = json.loads(payload)
    except ValueError:
        return 0
    return int(data.get("version", 0)) if isinstance(data, dict) else 0
