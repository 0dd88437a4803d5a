"""Redis: a stream for each topic, which its first entry creates, counted by XLEN and read by a consumer group.

Redis keeps the order within a stream.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

from redis import Redis as Client

from outspark.tools.brokers.broker import Broker
from outspark.tools.brokers.consumer import Consumer, PollingConsumer, Take
from outspark.tools.servers.redis import Redis, program

Entry: TypeAlias = tuple[bytes, dict[bytes, bytes]]
"""Its number in the stream, and its fields."""

GROUP, MEMBER = "counter", "demo"
_BATCH = 500
_BLOCK_MS = 200


class RedisBroker(Broker):
    name = "redis"
    title = "Redis"

    def __init__(self) -> None:
        super().__init__(Redis(), program)

    def create(self, topic: str, events: str | None = None) -> None:
        """Nothing to do."""

    def count(self, topic: str) -> int:
        with Client.from_url(self.url) as client:
            return int(client.xlen(topic))

    def open_consumer(self, topic: str, events: str, take: Take) -> Consumer:
        return RedisConsumer(self, topic, take)

    def describe(self, topic: str, events: str) -> str:
        return f"stream {topic}"


class RedisConsumer(PollingConsumer):
    def __init__(self, broker: RedisBroker, topic: str, take: Take) -> None:
        super().__init__(broker, topic, take)
        self._stream = topic
        self._client = Client.from_url(broker.url, protocol=2)
        self._client.xgroup_create(topic, GROUP, id="0", mkstream=True)
        self._start()

    def close(self) -> None:
        super().close()
        self._client.close()

    def _poll(self) -> None:
        # The client's types allow for every protocol and decoding; this one uses RESP2 and bytes.
        answer: list[tuple[bytes, list[Entry]]] = cast(
            Any,
            self._client.xreadgroup(GROUP, MEMBER, {self._stream: ">"}, count=_BATCH, block=_BLOCK_MS),
        )
        for _, entries in answer:
            for _, fields in entries:
                self._take(fields[b"id"].decode(), fields[b"partition_key"].decode(), fields[b"payload"])
            self._client.xack(self._stream, GROUP, *(number for number, _ in entries))
