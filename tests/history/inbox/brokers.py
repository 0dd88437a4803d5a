"""The real brokers that histories of inboxes are taken from: a topic of its own, and whether all of it was heard of."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import nats
from nats.js import JetStreamContext

from outspark.brokers.nats.wire import PARTITION_KEY
from outspark.tools.servers.nats import Nats
from tests.history.inbox.drafts import Draft

PARTITIONS = 3
TIMEOUT = 20.0

T = TypeVar("T")


class Broker(ABC):
    """A running one, for many histories."""

    @abstractmethod
    def open_topic(self, topic: str) -> None: ...

    @abstractmethod
    def feed(self, topic: str) -> dict[str, Any]:
        """The settings of a feed that takes all of the topic."""

    @abstractmethod
    def publish(self, topic: str, drafts: Sequence[tuple[Draft, int]]) -> None:
        """Each to its partition; returns when the broker has them all."""

    @abstractmethod
    def drained(self, topic: str, groups: Sequence[str]) -> bool:
        """Has every group acknowledged all there is?"""


class NatsBroker(Broker):
    """A partition is a subject of the one stream. Ids travel as `X-Event-ID`, which JetStream leaves alone."""

    def __init__(self, server: Nats) -> None:
        self._server = server

    def open_topic(self, topic: str) -> None:
        async def create(jetstream: JetStreamContext) -> None:
            await jetstream.add_stream(name=topic, subjects=[f"{topic}.*"])

        self._run(create)

    def feed(self, topic: str) -> dict[str, Any]:
        options = {"ack_wait": "2s"}
        return {"type": "nats", "url": self._server.url, "topics": [f"{topic}.*"], "options": options}

    def publish(self, topic: str, drafts: Sequence[tuple[Draft, int]]) -> None:
        async def publish(jetstream: JetStreamContext) -> None:
            for draft, partition in drafts:
                key = {} if draft.key is None else {PARTITION_KEY: draft.key}
                await jetstream.publish(f"{topic}.{partition}", draft.body, headers={**draft.headers, **key})

        self._run(publish)

    def drained(self, topic: str, groups: Sequence[str]) -> bool:
        async def look(jetstream: JetStreamContext) -> bool:
            consumers = await jetstream.consumers_info(topic)
            left = [(one.num_pending or 0) + (one.num_ack_pending or 0) for one in consumers]
            return len(left) == len(groups) and not any(left)

        return self._run(look)

    def _run(self, work: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        async def run() -> T:
            client = await nats.connect(self._server.url)
            try:
                return await work(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(run())
