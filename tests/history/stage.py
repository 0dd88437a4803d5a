"""Where a history is played: a database with an outbox, transactions that write to it, and relays that empty it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg

from outspark.contracts.openoutbox.table import ddl
from outspark.new_event import NewEvent
from outspark.outbox import Outbox
from outspark.settings import Settings
from tests.databases import Database
from tests.history.brokers import Broker
from tests.history.history import History, Row, Rules, Written, with_arrivals
from tests.history.hosting import Hosted, Relay, settings_for
from tests.history.journal import Deed, Entry, Journal
from tests.history.publisher import Behaviour, Conduct

UNFINISHED = """\
-- What the relays still have to do; of a parked key there is nothing left
SELECT count(*) FROM openoutbox_events e
WHERE status IN ('PENDING', 'DELIVERING') AND NOT (%(park)s AND EXISTS (
  SELECT 1 FROM openoutbox_events d WHERE d.status = 'DEAD' AND d.partition_key = e.partition_key))"""


@dataclass(frozen=True, slots=True)
class Draft:
    """An event to be written."""

    key: str | None
    behaviour: Behaviour = Behaviour.PASS
    delay: timedelta | None = None


@dataclass(slots=True)
class Transaction:
    """One open transaction of a service. Its keys are its own until it ends, as if their aggregates were locked."""

    conn: psycopg.Connection[Any]
    written: list[Written] = field(default_factory=list)

    def write(self, drafts: list[Draft]) -> None:
        new = [NewEvent("t", draft.behaviour.payload, draft.key, delay=draft.delay) for draft in drafts]
        Outbox().enqueue(self.conn, *new)
        for event, draft in zip(new, drafts, strict=True):
            row = self.conn.execute(
                "SELECT created_at, available_at FROM openoutbox_events WHERE event_id = %s", [event.id]
            ).fetchone()
            assert row is not None
            due = None if draft.delay is None else row[1]
            self.written.append(Written(event.id, draft.key, row[0], draft.behaviour, due))

    @property
    def keys(self) -> set[str | None]:
        return {event.key for event in self.written}


@dataclass(slots=True)
class Stage:
    database: Database
    settings: Settings
    conduct: Conduct
    relays: list[Hosted] = field(default_factory=list)
    written: dict[UUID, Written] = field(default_factory=dict)
    broker: Broker | None = None
    broker_stops: int = 0

    @classmethod
    def build(
        cls,
        database: Database,
        folder: Path,
        relay: dict[str, Any] | None = None,
        source: dict[str, Any] | None = None,
        broker: Broker | None = None,
        **conduct: Any,
    ) -> Stage:
        """With a broker, it alone says in the end what was delivered."""
        database.connect().execute(ddl())
        settings = settings_for(database.url, relay or {}, source or {})
        address = broker.open_topic(f"history-{uuid4().hex}") if broker else None
        conduct_of_all = Conduct(folder / "journal", address=address, **conduct)
        return cls(database, settings, conduct_of_all, broker=broker)

    def begin(self) -> Transaction:
        conn = self.database.connect()
        conn.autocommit = False
        return Transaction(conn)

    def commit(self, transaction: Transaction) -> None:
        transaction.conn.commit()
        transaction.conn.close()
        self.written.update({event.id: event for event in transaction.written})

    def roll_back(self, transaction: Transaction) -> None:
        transaction.conn.rollback()
        transaction.conn.close()

    def write(self, *drafts: Draft) -> list[UUID]:
        """Commit events in one transaction; their ids."""
        transaction = self.begin()
        transaction.write(list(drafts))
        self.commit(transaction)
        return [event.id for event in transaction.written]

    def relay(self, variant: str | None = None, settings: Settings | None = None) -> Relay:
        """Start one more relay, whose processes end with the stage."""
        instance = f"r{len(self.relays)}"
        relay = Relay(settings or self.settings, instance, self.conduct, variant)
        self.relays.append(relay)
        relay.tick()
        return relay

    def end_broker(self, kill: bool) -> None:
        assert self.broker is not None
        self.broker_stops += 1
        if kill:
            self.broker.kill()
        else:
            self.broker.stop()

    def start_broker(self) -> None:
        assert self.broker is not None
        self.broker.start()

    def tick(self) -> None:
        for relay in self.relays:
            relay.tick()

    def finished(self) -> bool:
        park = self.settings.sources["outbox"].on_dead == "park"
        row = self.query(UNFINISHED, park=park)[0]
        return bool(row[0] == 0)

    def query(self, query: str, **parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database.url, autocommit=True) as conn:
            return conn.execute(query, parameters).fetchall()

    def entries(self) -> list[Entry]:
        journal = Journal(self.conduct.journal)
        try:
            return journal.read()
        finally:
            journal.close()

    def did(self, event: UUID, deed: Deed) -> bool:
        return any(entry.event == event and entry.deed == deed for entry in self.entries())

    def history(self) -> History:
        source = self.settings.sources["outbox"]
        rules = Rules(
            source.retry.max_attempts, source.batch_size, source.ordering, source.lease, source.on_dead
        )
        rows = self.query("SELECT event_id, status, attempts, locked_by FROM openoutbox_events")
        killed = set().union(*(relay.killed for relay in self.relays))
        entries = self._with_arrivals(self.entries())
        table = {id: Row(*rest) for id, *rest in rows}
        return History(rules, self.written, table, entries, killed, self.broker_stops)

    def _with_arrivals(self, entries: list[Entry]) -> list[Entry]:
        if self.broker is None or self.conduct.address is None:
            return entries
        return with_arrivals(entries, self.broker.arrivals(self.conduct.address.topic))


@contextmanager
def open_stage(database: Database, folder: Path, **options: Any) -> Iterator[Stage]:
    stage = Stage.build(database, folder, **options)
    try:
        yield stage
    finally:
        for relay in stage.relays:
            relay.abandon()
