"""What a drain needs of a broker: a server, a fresh topic, and in the end how much that holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, Self

from outspark.tools.servers.server import Server

BrokerName = Literal["kafka", "nats", "rabbitmq", "redis"]


class Broker(ABC):
    """Serves inside `with`. It runs on from one drain to the next, as brokers do: a JVM is slow at first."""

    name: BrokerName
    title: str

    def __init__(self, server: Server) -> None:
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
    @abstractmethod
    def url(self) -> str: ...

    def settings(self) -> dict[str, Any]:
        """The destination as a relay is given it."""
        return {"type": self.name, "url": self.url}

    def fresh_topic(self) -> str:
        self._topics += 1
        topic = f"bench-{self._topics}"
        self._create(topic)
        return topic

    @abstractmethod
    def count(self, topic: str) -> int:
        """Messages that it holds, by its own account."""

    @abstractmethod
    def _create(self, topic: str) -> None: ...
