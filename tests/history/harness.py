"""Where a history is played: a database with an outbox, transactions that write to it, and relays that empty it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg

from outspark.config.settings import Settings
from tests.databases import Database
from tests.history.brokers import Broker
from tests.history.history import History, Row, Rules, Written, with_arrivals
from tests.history.hosting import Hosted, Relay, settings_for
from tests.history.journal import Deed, Entry, Journal
from tests.history.publisher import Conduct
from tests.history.tables import Draft, OpenOutboxTable, Table, Transaction

__all__ = ["Draft", "Harness", "open_harness"]


@dataclass(slots=True)
class Harness:
    database: Database
    settings: Settings
    conduct: Conduct
    table: Table
    relays: list[Hosted] = field(default_factory=list)
    written: dict[UUID, Written] = field(default_factory=dict)
    broker: Broker | None = None
    broker_stops: int = 0

    @classmethod
    def build(
        cls,
        database: Database,
        folder: Path,
        hosting: dict[str, Any] | None = None,
        relay: dict[str, Any] | None = None,
        source: dict[str, Any] | None = None,
        broker: Broker | None = None,
        contract: type[Table] = OpenOutboxTable,
        **conduct: Any,
    ) -> Harness:
        """With a broker, it alone says in the end what was delivered."""
        settings = settings_for(
            database.url, hosting or {}, relay or {}, {**contract.source, **(source or {})}
        )
        address = broker.open_topic(f"history-{uuid4().hex}") if broker else None
        counts = contract.counts_failures
        conduct_of_all = Conduct(folder / "journal", address=address, counts_attempts=counts, **conduct)
        table = contract(conduct_of_all)
        table.create(database.connect())
        return cls(database, settings, conduct_of_all, table, broker=broker)

    def begin(self) -> Transaction:
        conn = self.database.connect()
        conn.autocommit = False
        return self.table.begin(conn)

    def commit(self, transaction: Transaction) -> None:
        transaction.commit()
        transaction.conn.close()
        self.written.update({event.id: event for event in transaction.written})

    def roll_back(self, transaction: Transaction) -> None:
        transaction.roll_back()
        transaction.conn.close()

    def write(self, *drafts: Draft) -> list[UUID]:
        """Commit events in one transaction; their ids."""
        transaction = self.begin()
        transaction.write(list(drafts))
        self.commit(transaction)
        return [event.id for event in transaction.written]

    def relay(self, variant: str | None = None, settings: Settings | None = None) -> Relay:
        """Start one more relay, whose processes end with the harness."""
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
        row = self.query(self.table.unfinished, park=park)[0]
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
            source.retry.max_attempts,
            source.batch_size,
            source.ordering,
            source.lease,
            source.on_dead,
            self.table.counts_failures,
        )
        rows = self.query(self.table.rows)
        killed = set().union(*(relay.killed for relay in self.relays))
        entries = self._with_arrivals(self.entries())
        table = {id: Row(*rest) for id, *rest in rows}
        return History(rules, self.written, table, entries, killed, self.broker_stops)

    def _with_arrivals(self, entries: list[Entry]) -> list[Entry]:
        if self.broker is None or self.conduct.address is None:
            return entries
        return with_arrivals(entries, self.broker.arrivals(self.conduct.address.topic))


@contextmanager
def open_harness(database: Database, folder: Path, **options: Any) -> Iterator[Harness]:
    harness = Harness.build(database, folder, **options)
    try:
        yield harness
    finally:
        for relay in harness.relays:
            relay.abandon()
        harness.table.close()
