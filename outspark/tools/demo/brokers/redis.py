"""The demo on Redis: one stream, read by a consumer group.

Redis keeps the order within a stream. The shop's events have five types, so a route brings them all to the same one.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

from redis import Redis as Client

from outspark.tools.demo.brokers.broker import Broker
from outspark.tools.demo.brokers.polling import Polling
from outspark.tools.demo.consumer import Consumer, Traffic
from outspark.tools.servers.redis import Redis, program

Entry: TypeAlias = tuple[bytes, dict[bytes, bytes]]
"""Its number in the stream, and its fields."""

STREAM = "orders"
GROUP, MEMBER = "counter", "demo"
_AT_ONCE = 500
_BLOCK_MS = 200

SETTINGS = """\
[destinations.redis]
type = "redis"
url = "{url}"

[[routes]]
topic = "{stream}"
"""


class RedisBroker(Broker):
    name = "Redis"
    place = f"stream {STREAM}"

    def __init__(self) -> None:
        self._redis = Redis()
        super().__init__(self._redis)

    def find_server(self) -> None:
        program()

    @property
    def url(self) -> str:
        return self._redis.url

    @property
    def settings(self) -> str:
        return SETTINGS.format(url=self.url, stream=STREAM)

    def open_consumer(self) -> Consumer:
        return RedisConsumer(self.url)


class RedisConsumer(Consumer):
    def __init__(self, url: str) -> None:
        super().__init__()
        self._client = Client.from_url(url, protocol=2)
        self._client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        self._polling = Polling(self._poll)

    def traffic(self) -> Traffic:
        """Nothing is dropped: Redis gives each entry a number of its own and does not look at the event's id."""
        self._polling.check()
        stored = int(self._client.xlen(STREAM))
        return Traffic(published=stored, stored=stored)

    def close(self) -> None:
        self._polling.stop()
        self._client.close()

    def _poll(self) -> None:
        # The client's types allow for every protocol and decoding; ours are RESP2 and bytes.
        answer: list[tuple[bytes, list[Entry]]] = cast(
            Any,
            self._client.xreadgroup(GROUP, MEMBER, {STREAM: ">"}, count=_AT_ONCE, block=_BLOCK_MS),
        )
        for _, entries in answer:
            for _, fields in entries:
                self.take(fields[b"id"].decode(), fields[b"partition_key"].decode(), fields[b"payload"])
            self._client.xack(STREAM, GROUP, *(number for number, _ in entries))
