"""What demo and bench ask of a broker: a server, topics in it, a count of their messages, and a consumer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self, TypeAlias

from outspark.tools.brokers.consumer import Consumer, Take
from outspark.tools.servers.kafka import Kafka
from outspark.tools.servers.nats import Nats
from outspark.tools.servers.rabbitmq import RabbitMQ
from outspark.tools.servers.redis import Redis

BrokerName: TypeAlias = Literal["nats", "kafka", "rabbitmq", "redis"]
BrokerServer: TypeAlias = Kafka | Nats | RabbitMQ | Redis


class Broker(ABC):
    """Serves inside `with`. `events` is the first word of the types of events that share a topic: `order`."""

    name: ClassVar[BrokerName]
    title: ClassVar[str]
    drops_known_ids: ClassVar[bool] = False
    """Whether the broker drops a message whose id it has stored. Otherwise the consumer has to."""
    has_feed: ClassVar[bool] = False
    """Whether an inbox can consume from it."""

    def __init__(self, server: BrokerServer, find_server: Callable[[], object]) -> None:
        """`find_server` raises OutsparkError, with what to install, when this machine has no such server and cannot
        fetch one."""
        self.find_server = find_server
        self._server = server
        self._topics = 0

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.close()

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def url(self) -> str:
        """For clients, once the server has started."""
        return self._server.url

    def settings(self) -> dict[str, Any]:
        """The destination as a relay is given it."""
        return {"type": self.name, "url": self.url}

    def fresh_topic(self) -> str:
        """A topic that a relay fills by routing events to it."""
        self._topics += 1
        topic = f"bench-{self._topics}"
        self.create(topic)
        return topic

    @abstractmethod
    def create(self, topic: str, events: str | None = None) -> None: ...

    @abstractmethod
    def count(self, topic: str) -> int:
        """Messages that the broker holds, by its own account."""

    @abstractmethod
    def open_consumer(self, topic: str, events: str, take: Take) -> Consumer:
        """Create the topic and consume it from now on. The server runs; the relay does not yet."""

    @abstractmethod
    def describe(self, topic: str, events: str) -> str:
        """The topic in the broker's own terms."""

    def routing(self, topic: str) -> str:
        """The relay's settings, as TOML, that bring events of several types to one topic. Kafka and Redis keep the
        order of a key only within a topic."""
        return f'\n[[routes]]\ntopic = "{topic}"\n'

    def feed_topic(self, topic: str, events: str) -> str:
        """The topic as the settings of a feed name it."""
        return topic
