"""Reads a topic and hands each message to a function, in a thread of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from outspark.brokers.loop_thread import LoopThread

if TYPE_CHECKING:
    from outspark.tools.brokers.broker import Broker

T = TypeVar("T")
Take: TypeAlias = Callable[[str, str, bytes], None]
"""Gets the event's id, its key and the payload of each message."""

TIMEOUT = 20.0
_THREAD = "broker-consumer"


@dataclass(frozen=True, slots=True)
class Traffic:
    """The broker's own count of messages."""

    published: int
    """Sent by the relay, those that the broker dropped included."""
    stored: int
    """Kept by the broker; the consumer gets each of them."""


class Consumer(ABC):
    """Connected from construction to `close`. `counted` is the topic that holds a copy of each message."""

    def __init__(self, broker: Broker, counted: str, take: Take) -> None:
        self._broker, self._counted, self._take = broker, counted, take

    def traffic(self) -> Traffic:
        """Counts all that was published before this call. Raises what ended the consumer early."""
        stored = self._broker.count(self._counted)
        return Traffic(published=stored, stored=stored)

    @abstractmethod
    def close(self) -> None: ...


class PollingConsumer(Consumer):
    """For a client that has to be polled; one poll takes a fraction of a second at most."""

    def _start(self) -> None:
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=_THREAD)
        self._work = self._pool.submit(self._run)

    def traffic(self) -> Traffic:
        if self._work.done():
            self._work.result()
        return super().traffic()

    def close(self) -> None:
        self._stopping.set()
        self._pool.shutdown()

    @abstractmethod
    def _poll(self) -> None: ...

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._poll()


class Connection(Protocol):
    def close(self) -> Awaitable[None]: ...


class LoopConsumer(Consumer):
    """For an asyncio client, which calls back with each message."""

    def _start(self, connect: Coroutine[Any, Any, Connection]) -> None:
        self._loop = LoopThread(_THREAD)
        try:
            self._connection = self._run(connect)
        except BaseException:
            self._loop.stop()
            raise

    def close(self) -> None:
        self._run(self._disconnect())
        self._loop.stop()

    async def _disconnect(self) -> None:
        await self._connection.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work, TIMEOUT)
