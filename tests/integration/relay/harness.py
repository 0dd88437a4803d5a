"""A lane at work in the test's own process: an outbox, a broker that remembers, and the loop between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from outspark.config.settings import Settings
from outspark.contracts.openoutbox.table import ddl
from outspark.delivery.destination import Destination
from outspark.errors import DestinationDown
from outspark.event import Message
from outspark.hosting import control, process
from outspark.hosting.spec import ShiftReport
from outspark.outbox.new_event import NewEvent
from outspark.outbox.openoutbox import Outbox
from outspark.outcome import DELIVERED, Outcome, Retry
from outspark.relay.lane import Lane
from outspark.relay.spec import RelayLaneSpec, assign_slots
from tests.databases import Database
from tests.waiting import wait_for


@dataclass(slots=True)
class Broker:
    """Remembers what it was given, and answers as told; a payload is the name of the event."""

    keeps_order: bool = False
    down: bool = False
    missing: set[str] = field(default_factory=set)
    """Topics that are not there."""
    answers: dict[str, list[Outcome]] = field(default_factory=dict)
    """What to answer to each event, one after the other; delivered when there is nothing left."""
    batches: list[list[str]] = field(default_factory=list)
    arrived: dict[str, float] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    probes: int = 0
    keeps_headers: bool = False

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        self.batches.append([message.payload.decode() for message in messages])
        return [self._answer(message) for message in messages]

    def _answer(self, message: Message) -> Outcome:
        if self.down:
            return Retry("nobody answers", counted=False)
        if message.topic in self.missing:
            return Retry.of_topic("missing", f"no topic {message.topic}; create it")
        name = message.payload.decode()
        answers = self.answers.get(name)
        outcome = answers.pop(0) if answers else DELIVERED
        if outcome is DELIVERED:
            self.messages.append(message)
            self.arrived[name] = time.monotonic()
        return outcome

    def check(self, timeout: float) -> None:
        self.probes += 1
        if self.down:
            raise DestinationDown("nobody answers")

    def close(self) -> None:
        """Nothing is open."""

    def delivered(self) -> list[str]:
        return [message.payload.decode() for message in self.messages]

    def published(self) -> list[str]:
        return [name for batch in self.batches for name in batch]


@dataclass(slots=True)
class Harness:
    database: Database
    conn: psycopg.Connection[Any]
    brokers: dict[str, Broker]
    source: dict[str, Any] = field(default_factory=dict)
    hosting: dict[str, Any] = field(default_factory=dict)
    routes: list[dict[str, Any]] = field(default_factory=list)
    more_sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further sources in the same database, as they differ from the first."""
    destination: dict[str, Any] = field(default_factory=dict)
    timeout: float = 2.0
    """How long a batch may wait for a broker, as the lane sees it."""

    @property
    def broker(self) -> Broker:
        (broker,) = self.brokers.values()
        return broker

    def settings(self) -> Settings:
        retry = {"base_delay": "50ms", "max_delay": "50ms", "max_attempts": 3, "jitter": 0.0}
        source = {
            "url": self.database.url,
            "slots": 2,
            "poll_interval": "20ms",
            "retry": retry,
            **self.source,
        }
        return Settings.model_validate(
            {
                "relay": {"id": "test"},
                "hosting": {"lanes": 1, "shift": "600s", **self.hosting},
                "sources": {
                    "outbox": source,
                    **{name: {**source, **more} for name, more in self.more_sources.items()},
                },
                "destinations": {name: {"type": "null", **self.destination} for name in self.brokers},
                "routes": self.routes,
            }
        )

    def spec(self, instance: str = "one") -> RelayLaneSpec:
        (spec,) = assign_slots(self.settings(), instance, {})
        return spec

    def destinations(self) -> dict[str, Destination]:
        return {name: Destination(name, broker, self.timeout) for name, broker in self.brokers.items()}

    def lane(self, instance: str = "one") -> Lane:
        return Lane(self.spec(instance), self.destinations())

    def work(self, until: Callable[[], bool], lane: Lane | None = None, timeout: float = 15.0) -> ShiftReport:
        """Run a lane here until the condition holds."""
        deadline = time.monotonic() + timeout

        def over() -> bool:
            assert time.monotonic() < deadline, f"not done in {timeout:g} s: {self.states()}"
            return until()

        return (lane or self.lane()).run(over)

    def work_to_the_end(self, lane: Lane | None = None) -> ShiftReport:
        return self.work(lambda: not self.waiting(), lane)

    @contextmanager
    def working(self, lane: Lane | None = None) -> Iterator[Lane]:
        """A lane in a thread beside the test, stopped over its channel at the end."""
        running = lane or self.lane()
        thread = threading.Thread(target=running.run)
        thread.start()
        try:
            yield running
        finally:

            def ended() -> bool:
                control.notify(self.conn, running.spec.channel, control.STOP)
                return not thread.is_alive()

            wait_for(ended, what="the end of the lane")
            thread.join()

    def enqueue(self, *names: str, key: str | None = None, **more: Any) -> None:
        """Events whose payload is their name, in this order."""
        events = [NewEvent(more.get("type", "t"), name, key, **_without_type(more)) for name in names]
        Outbox().enqueue(self.conn, *events)

    def set(self, name: str, **columns: Any) -> None:
        """Change the row of an event behind the relay's back."""
        for column, value in columns.items():
            query = psycopg.sql.SQL("UPDATE openoutbox_events SET {} = %s WHERE payload = %s").format(
                psycopg.sql.Identifier(column)
            )
            assert self.conn.execute(query, [value, name.encode()]).rowcount == 1

    def waiting(self) -> int:
        query = "SELECT count(*) FROM openoutbox_events WHERE status IN ('PENDING', 'DELIVERING')"
        return int(self.ask(query)[0][0])

    def states(self) -> dict[str, Any]:
        """What the table says about each event, by name: here its status and its attempts."""
        rows = self.ask("SELECT convert_from(payload, 'UTF8'), status, attempts FROM openoutbox_events")
        return {name: (status, attempts) for name, status, attempts in rows}

    def error(self, name: str) -> str:
        query = "SELECT last_error FROM openoutbox_events WHERE payload = %s"
        return str(self.ask(query, name.encode())[0][0])

    def ask(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self.conn.execute(query, parameters).fetchall()


def _without_type(more: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in more.items() if name != "type"}


def open_harness(database: Database, *brokers: str) -> Harness:
    conn = database.connect()
    conn.execute(ddl())
    return Harness(database, conn, {name: Broker() for name in brokers or ("broker",)})


def close_harness(harness: Harness) -> None:
    process.close()
