"""Redis Streams for the bench: a stream comes into being with its first entry, and is counted by XLEN."""

from __future__ import annotations

from redis import Redis as Client

from outspark.tools.bench.brokers.broker import Broker
from outspark.tools.servers.redis import Redis


class RedisBroker(Broker):
    name = "redis"
    title = "Redis"

    def __init__(self) -> None:
        self._redis = Redis()
        super().__init__(self._redis)

    @property
    def url(self) -> str:
        return self._redis.url

    def count(self, topic: str) -> int:
        with Client.from_url(self.url) as client:
            return int(client.xlen(topic))

    def _create(self, topic: str) -> None:
        """Nothing to do."""
