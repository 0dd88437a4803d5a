"""What runs during the demo: PostgreSQL, the broker, relay, consumer and inbox. All of it is removed at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

import psycopg

from outspark import contracts
from outspark.contracts.omnibox import Omnibox
from outspark.contracts.omnibox.inbox_maintenance import InboxMaintenance
from outspark.database.names import TableName, resolve
from outspark.maintenance.operations import Maintenance
from outspark.tools.brokers import Broker
from outspark.tools.brokers.consumer import Consumer
from outspark.tools.demo import billing, shop
from outspark.tools.demo.application import Application, start_inbox, start_relay
from outspark.tools.demo.arrivals import Arrivals
from outspark.tools.demo.inbox_lanes import Workers
from outspark.tools.demo.relay_lanes import Lanes
from outspark.tools.demo.screen import Screen
from outspark.tools.servers.postgres import Postgres

CONTRACT = contracts.get("openoutbox")
OUTBOX = TableName.parse(CONTRACT.default_table)
INBOX = TableName.parse(billing.INBOX)
GROUP = "billing"
TOPIC, EVENTS = "orders", "order"
"""Where the shop's events go, and the first word of their types."""
CLOSE_TIMEOUT = 3.0
"""Seconds for an application to end in, once its events no longer matter."""


class Setup:
    """Inside `with`, all servers run and Spark is starting."""

    def __init__(self, broker: Broker, screen: Screen) -> None:
        self.broker = broker
        self._screen = screen
        self._stack = ExitStack()
        self._began = time.monotonic()
        self.postgres = Postgres()
        self.arrivals = Arrivals()
        self.consumer: Consumer
        self.relay: Application
        self.inbox: Application | None = None
        """None where no feed brings messages from the broker."""
        self._culprit: Application | None = None

    @property
    def clock(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began

    @property
    def applications(self) -> list[Application]:
        return [self.relay] if self.inbox is None else [self.relay, self.inbox]

    def culprit(self) -> Application | None:
        """The first application that ended by itself: others may do so because of it."""
        if self._culprit is None:
            self._culprit = next((one for one in self.applications if one.failed), None)
        return self._culprit

    def milestone(self, text: str, *, bad: bool = False) -> None:
        self._screen.milestone(self.clock, text, bad=bad)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.postgres)
            self._create_tables()
            self.milestone("PostgreSQL is up: orders and an outbox for the shop" + self._and_inbox())
            stack.enter_context(self.broker)
            self.consumer = self.broker.open_consumer(TOPIC, EVENTS, self.arrivals.take)
            stack.callback(self.consumer.close)
            self.milestone(f"{self.broker.title} is up; a consumer reads the {self.topic}")
            self._start_applications(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def topic(self) -> str:
        """Where the shop's events go, in the broker's own terms."""
        return self.broker.describe(TOPIC, EVENTS)

    @contextmanager
    def lanes(self) -> Iterator[Lanes]:
        """Access to the relay's lanes, with a connection for one thread."""
        with self._connect() as conn:
            table = resolve(conn, OUTBOX)
            yield Lanes(conn, table, Maintenance(conn, CONTRACT.maintenance(table)))

    @contextmanager
    def workers(self) -> Iterator[Workers]:
        """Access to the inbox's lanes, with a connection for one thread. Only where there is an inbox."""
        assert self.inbox is not None
        with self._connect() as conn:
            table = resolve(conn, INBOX)
            maintenance = Maintenance(conn, InboxMaintenance(table, GROUP))
            yield Workers(conn, table, GROUP, self.inbox.pid, maintenance)

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self.postgres.url(), autocommit=True, application_name="demo")

    def _start_applications(self, stack: ExitStack) -> None:
        database, broker = self.postgres.url(), self.broker
        self.relay = start_relay(database, broker, TOPIC)
        stack.callback(self.relay.close, CLOSE_TIMEOUT)
        if broker.has_feed:
            topic = broker.feed_topic(TOPIC, EVENTS)
            self.inbox = start_inbox(
                database, broker, topic, name=GROUP, table=billing.INBOX, app=billing.APP
            )
            stack.callback(self.inbox.close, CLOSE_TIMEOUT)

    def _create_tables(self) -> None:
        with psycopg.connect(self.postgres.url()) as conn:
            shop.create_tables(conn)
            for statement in CONTRACT.statements(OUTBOX):
                conn.execute(statement.encode())
            if self.broker.has_feed:
                billing.create_tables(conn)
                for statement in Omnibox(inbox=True).statements(INBOX):
                    conn.execute(statement.encode())

    def _and_inbox(self) -> str:
        return ", an inbox and bills for billing" if self.broker.has_feed else ""
