"""What arrived at the broker: a JetStream stream, read from its beginning."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

TIMEOUT = 10.0
# JetStream drops what carries an id that it saw within this many seconds; the least it takes shows most duplicates.
DEDUP_WINDOW = 0.1


@dataclass(frozen=True, slots=True)
class Arrival:
    subject: str
    id: str
    headers: dict[str, str]
    payload: bytes


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream called `name` for the subjects `name.>`."""

    url: str
    name: str

    def create(self) -> None:
        asyncio.run(self._create())

    def arrivals(self) -> list[Arrival]:
        return asyncio.run(self._arrivals())

    def count(self) -> int:
        return asyncio.run(self._count())

    async def _create(self) -> None:
        async with await nats.connect(self.url, connect_timeout=int(TIMEOUT)) as client:
            await client.jetstream(timeout=TIMEOUT).add_stream(
                name=self.name, subjects=[f"{self.name}.>"], duplicate_window=DEDUP_WINDOW
            )

    async def _count(self) -> int:
        async with await nats.connect(self.url, connect_timeout=int(TIMEOUT)) as client:
            info = await client.jetstream(timeout=TIMEOUT).stream_info(self.name)
            return info.state.messages

    async def _arrivals(self) -> list[Arrival]:
        async with await nats.connect(self.url, connect_timeout=int(TIMEOUT)) as client:
            stream = client.jetstream(timeout=TIMEOUT)
            wanted = (await stream.stream_info(self.name)).state.messages
            return await self._read(stream, wanted) if wanted else []

    async def _read(self, stream: JetStreamContext, wanted: int) -> list[Arrival]:
        found: list[Arrival] = []
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        consumer = await stream.pull_subscribe(f"{self.name}.>", stream=self.name, config=config)
        while len(found) < wanted:
            for message in await consumer.fetch(min(wanted - len(found), 1000), timeout=TIMEOUT):
                headers = dict(message.headers or {})
                id = headers.pop("Nats-Msg-Id", "")
                found.append(Arrival(message.subject, id, headers, message.data))
        await consumer.unsubscribe()
        return found
