"""What stands while the demo plays: PostgreSQL, the broker, the relay and the consumer. All of it goes at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

import psycopg

from outspark import contracts
from outspark.contracts.names import TableName, resolve
from outspark.demo import shop
from outspark.demo.brokers import Broker
from outspark.demo.consumer import Consumer
from outspark.demo.lanes import Lanes
from outspark.demo.relay import Relay
from outspark.demo.view import Screen
from outspark.embedded.postgres import Postgres
from outspark.maintenance import Maintenance

CONTRACT = contracts.get("openoutbox")
TABLE = TableName.parse(CONTRACT.default_table)
HASTE = 3.0
"""Seconds that the relay has to end in once nobody waits for its events."""


class Stage:
    """Entered, it is built up to the point where Spark is starting."""

    def __init__(self, broker: Broker, screen: Screen) -> None:
        self.broker = broker
        self._screen = screen
        self._stack = ExitStack()
        self._began = time.monotonic()
        self.postgres = Postgres()
        self.consumer: Consumer
        self.relay: Relay

    @property
    def clock(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began

    def milestone(self, text: str, *, bad: bool = False) -> None:
        self._screen.milestone(self.clock, text, bad=bad)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.postgres)
            self._create_tables()
            self.milestone("PostgreSQL is up, with an orders table and an outbox")
            stack.enter_context(self.broker.server)
            self.consumer = self.broker.open_consumer()
            stack.callback(self.consumer.close)
            self.milestone(f"{self.broker.name} is up; a consumer reads the {self.broker.place}")
            self.relay = Relay(database=self.postgres.url(), broker=self.broker.settings)
            stack.callback(self.relay.close, HASTE)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @contextmanager
    def lanes(self) -> Iterator[Lanes]:
        """A look at the relay's lanes, with a connection for one thread."""
        with psycopg.connect(self.postgres.url(), autocommit=True, application_name="demo") as conn:
            table = resolve(conn, TABLE)
            yield Lanes(conn, table, Maintenance(conn, CONTRACT.upkeep(table)))

    def _create_tables(self) -> None:
        with psycopg.connect(self.postgres.url()) as conn:
            shop.create_tables(conn)
            for statement in CONTRACT.statements(TABLE):
                conn.execute(statement.encode())
