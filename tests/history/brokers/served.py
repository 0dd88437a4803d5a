"""Brokers that are servers of their own: processes that a history can stop and kill."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Generic, TypeVar

from outspark.config.settings import DestinationSettings
from outspark.tools.servers.server import Server
from tests.history.brokers.broker import Broker
from tests.history.publisher import PUBLISH_TIMEOUT, Address

S = TypeVar("S", bound=Server)


class ServedBroker(Broker, Generic[S]):
    def __init__(self, server: S) -> None:
        self.server = server

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.server.kill()

    def close(self) -> None:
        self.server.close()


def address(type: str, topic: str, **settings: Any) -> Address:
    timeout = timedelta(seconds=PUBLISH_TIMEOUT)
    given = {"type": type, "publish_timeout": timeout, **settings}
    return Address(DestinationSettings.model_validate(given), topic)
