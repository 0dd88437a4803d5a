"""What the demo asks of a broker: a server, a place in it for the shop's events, and a consumer that reads there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from outspark.tools.demo.consumer import Consumer
from outspark.tools.servers.server import Server


class Broker(ABC):
    name: ClassVar[str]
    """As people write it."""
    place: ClassVar[str]
    """Where the shop's events go, in the broker's own words."""
    drops_known_ids: ClassVar[bool] = False
    """Does it drop a message whose id it has stored? Else the consumer has to."""
    has_feed: ClassVar[bool] = False
    """Can an inbox take messages in from it?"""

    def __init__(self, server: Server) -> None:
        self.server = server

    @abstractmethod
    def find_server(self) -> None:
        """OutsparkError, with what to install, when this machine has no server of this kind and cannot fetch one."""

    @property
    @abstractmethod
    def url(self) -> str:
        """For clients, once the server has started."""

    @property
    @abstractmethod
    def settings(self) -> str:
        """The relay's part of the settings: the destination and its routes, as TOML."""

    @property
    def feed(self) -> str | None:
        """The inbox's part of the settings: its feed, as TOML; None where there is no feed for this broker."""
        return None

    @abstractmethod
    def open_consumer(self) -> Consumer:
        """Make the place and read there from now on. The server runs; the relay does not yet."""
