"""A lane at work on an omni-box outbox, and omni-box's own relay beside it.

A payload is the name of its event and has to be JSON, so events are called by numbers here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

from psycopg import sql

from outspark.contracts.omnibox.table import kind
from outspark.database.names import TableName
from outspark.event import Message
from outspark.outbox.omnibox import Enqueued, NewOutboxEvent, OmniboxOutbox
from outspark.outcome import Outcome
from tests.databases import Database
from tests.integration.relay.harness import Broker, Harness

ORDERS = UUID("0198c1d2-0000-7000-8000-000000000000")
TABLE = TableName("outbox_events", "public")
PARTITIONS = """
CREATE TABLE outbox_events_past PARTITION OF outbox_events FOR VALUES FROM (MINVALUE) TO ('2020-01-01');
CREATE TABLE outbox_events_now PARTITION OF outbox_events FOR VALUES FROM ('2020-01-01') TO (MAXVALUE)"""

FOREIGN_CLAIM = """
-- As omni-box's own relay locks what it is going to publish
UPDATE outbox_events SET locked_at = now(), locked_by = 'worker-7' WHERE id IN (
  SELECT id FROM outbox_events
  WHERE status = 'pending' AND locked_at IS NULL AND scheduled_at <= now() AND attempts_made < max_attempts
  ORDER BY scheduled_at, created_at, id FOR UPDATE SKIP LOCKED)
RETURNING payload::text"""


@dataclass(slots=True)
class Watched(Broker):
    """Lets a test do something while events are on their way."""

    meanwhile: Callable[[], None] | None = None

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        if self.meanwhile is not None:
            self.meanwhile()
        return Broker.publish(self, messages, timeout)


@dataclass(slots=True)
class OmniboxHarness(Harness):
    outbox: OmniboxOutbox = field(default_factory=OmniboxOutbox)

    @property
    def watched(self) -> Watched:
        broker = self.broker
        assert isinstance(broker, Watched)
        return broker

    def write(self, *names: str, key: str = "k", type: str = "order.paid", **more: Any) -> list[Enqueued]:
        """Events whose payload is their name, in this order."""
        given = {"aggregate_type": "order", "aggregate_id": uuid5(ORDERS, key), "topic": "orders", **more}
        events = [NewOutboxEvent(type, name, key=key, **given) for name in names]
        with self.conn.transaction():
            return self.outbox.enqueue(self.conn, *events)

    def change(self, name: str, **columns: Any) -> None:
        """Change the row of an event behind the relay's back, all columns at once."""
        settings = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(column), sql.Placeholder(column)) for column in columns
        )
        query = sql.SQL("UPDATE outbox_events SET {} WHERE payload::text = %(name)s").format(settings)
        assert self.conn.execute(query, {**columns, "name": name}).rowcount == 1

    def row(self, name: str, *columns: str) -> tuple[Any, ...]:
        query = sql.SQL("SELECT {} FROM outbox_events WHERE payload::text = %s")
        chosen = query.format(sql.SQL(", ").join(map(sql.Identifier, columns)))
        (row,) = self.conn.execute(chosen, [name]).fetchall()
        return tuple(row)

    def foreign_claim(self) -> list[str]:
        """What omni-box's own relay gets now."""
        return [name for (name,) in self.conn.execute(FOREIGN_CLAIM)]

    def waiting(self) -> int:
        return int(self.ask("SELECT count(*) FROM outbox_events WHERE status = 'pending'")[0][0])

    def states(self) -> dict[str, Any]:
        """Of each event its status and its attempts."""
        rows = self.ask("SELECT payload::text, status, attempts_made FROM outbox_events")
        return {name: (status, attempts) for name, status, attempts in rows}

    def error(self, name: str) -> str:
        return str(self.row(name, "last_error")[0])


def open_omnibox_harness(database: Database, *, partitioned: bool = False) -> OmniboxHarness:
    conn = database.connect()
    conn.execute(kind(partitioned=partitioned).ddl(TABLE))
    if partitioned:
        conn.execute(PARTITIONS)
    return OmniboxHarness(database, conn, {"broker": Watched()}, source={"contract": "omnibox"})
