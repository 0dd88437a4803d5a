"""A place where a relay works: a database with an outbox, a stream, and what must be true of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from outspark import contracts
from outspark.database.names import TableName
from outspark.tools.servers.nats import Nats
from outspark.tools.servers.postgres import Postgres
from tests.acceptance.arrivals import Arrival, Stream
from tests.waiting import wait_for


@dataclass(frozen=True, slots=True)
class Harness:
    url: str
    stream: Stream

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as conn:
            yield conn

    def ask(self, question: str) -> list[tuple[Any, ...]]:
        with self.connect() as conn:
            return conn.execute(question.encode()).fetchall()

    def statuses(self) -> dict[str, int]:
        return dict(self.ask("SELECT status, count(*) FROM openoutbox_events GROUP BY status"))

    def await_drained(self, timeout: float = 60.0) -> None:
        """Until every event is DELIVERED."""
        wait_for(lambda: not self.statuses().keys() - {"DELIVERED"}, timeout=timeout, what="an empty outbox")

    def assert_nothing_lost(self) -> list[Arrival]:
        """Every event of the table is at the broker and nothing else is, in order per key; all that arrived."""
        arrivals = self.stream.arrivals()
        rows = self.ask(
            "SELECT event_id::text, partition_key FROM openoutbox_events ORDER BY created_at, event_id"
        )
        assert {arrival.id for arrival in arrivals} == {id for id, _ in rows}
        first = dict.fromkeys(
            arrival.id for arrival in arrivals
        )  # what comes twice counts where it came first
        harnesses = {id: number for number, id in enumerate(first)}
        last: dict[str, int] = {}
        for id, key in rows:
            assert last.get(key, -1) < harnesses[id], f"{id} overtook an earlier event of key {key}"
            last[key] = harnesses[id]
        return arrivals

    def locks(self) -> int:
        [(count,)] = self.ask(
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database"
            " WHERE locktype = 'advisory' AND datname = current_database()"
        )
        return int(count)

    def owners(self) -> dict[int, tuple[str, bool]]:
        return {
            slot: (owner, clean)
            for slot, owner, clean in self.ask("SELECT slot, owner, clean FROM outspark_slots")
        }


@contextmanager
def open_harness(postgres: Postgres, nats: Nats, name: str) -> Iterator[Harness]:
    """A database and a stream of this name."""
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    made = Harness(postgres.url(name), Stream(nats.url, name))
    with made.connect() as conn:
        for statement in contracts.get("openoutbox").statements(TableName.parse("openoutbox_events")):
            conn.execute(statement.encode())
    made.stream.create()
    yield made
