"""Redis Streams: the stream has the order in which Redis ran the commands."""

from __future__ import annotations

from redis import Redis as Client

from outspark.tools.servers.redis import Redis
from tests.history.brokers.served import ServedBroker, address
from tests.history.passing import SEND_HEADER
from tests.history.publisher import Address


class RedisBroker(ServedBroker[Redis]):
    def __init__(self) -> None:
        # With `everysec` Redis may put off the write to its file while an fsync is running, and a kill loses what it
        # has acknowledged meanwhile; with `always` the file has it before the answer goes out.
        super().__init__(Redis(config={"appendfsync": "always"}))

    def open_topic(self, topic: str) -> Address:
        return address("redis", topic, url=self.server.url)

    def arrivals(self, topic: str) -> list[str]:
        with Client.from_url(self.server.url, decode_responses=True) as client:
            return [fields[f"h:{SEND_HEADER}"] for _, fields in client.xrange(topic)]
