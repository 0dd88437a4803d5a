"""A service that keeps writing events, through outages of its database too, and what it knows to be committed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import psycopg

from outspark.outbox.openoutbox import NewEvent, Outbox

KEYS = 20


class Writer(threading.Thread):
    """Writes `rate` transactions of `batch` events each second until it is stopped."""

    def __init__(self, url: str, type: str, *, rate: float = 50, batch: int = 1) -> None:
        super().__init__(name="writer", daemon=True)
        self.committed: list[UUID] = []
        self._url, self._type, self._batch, self._interval = url, type, batch, 1 / rate
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                with psycopg.connect(self._url, autocommit=True, connect_timeout=5) as conn:
                    while not self._stopping.wait(self._interval):
                        self.committed += enqueue(conn, self._type, self._batch, first=len(self.committed))
            except psycopg.OperationalError:
                self._stopping.wait(0.1)

    def stop(self) -> None:
        self._stopping.set()
        self.join()


@contextmanager
def writing(url: str, type: str, *, rate: float = 50, batch: int = 1) -> Iterator[Writer]:
    writer = Writer(url, type, rate=rate, batch=batch)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def enqueue(conn: psycopg.Connection, type: str, count: int, *, first: int = 0) -> list[UUID]:
    """`count` events in one transaction; the payload is the event's number, which rises within a key."""
    events = [
        NewEvent(type, f"{number}".encode(), key=f"k{number % KEYS}")
        for number in range(first, first + count)
    ]
    return Outbox().enqueue(conn, *events)
