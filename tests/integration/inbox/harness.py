"""An inbox in a database of its own, beside the table of the service whose handlers write to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg

from outspark.contracts.omnibox.table import kind
from outspark.inbox import Accepted, Acceptor, AcceptSettings, Received, Router, Worker, WorkSettings
from outspark.maintenance.partitions import Partitions
from outspark.observability.metrics import Tally
from tests.databases import Database
from tests.waiting import wait_for

# No key on it: an effect that happens twice shows.
EFFECTS = (
    "CREATE TABLE effects (position bigserial, event text NOT NULL, handler text NOT NULL DEFAULT 'test')"
)

_offsets = itertools.count(1)


@dataclass
class Harness:
    database: Database
    conn: psycopg.Connection[Any]
    partitioned: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    """How workers differ from the usual."""
    tally: Tally = field(default_factory=Tally)
    router: Router = field(default_factory=Router)
    workers: list[Worker] = field(default_factory=list)

    @property
    def table(self) -> str:
        return str(kind(inbox=True, partitioned=self.partitioned).default_table)

    def acceptor(self, group: str = "billing", **settings: Any) -> Acceptor:
        given = AcceptSettings(group=group, **settings)
        return Acceptor(self.database.connect(), self.table, given, self.tally)

    def accept(self, *messages: Received, group: str = "billing", **settings: Any) -> list[Accepted]:
        return self.acceptor(group, **settings).accept(messages)

    def worker(self, **settings: Any) -> Worker:
        retry = {"base_delay": "50ms", "max_delay": "50ms", "jitter": 0.0}
        usual = {"group": "billing", "timeout": "20s", "maintenance_interval": "20ms", "retry": retry}
        given = WorkSettings.model_validate({**usual, **self.settings, **settings})
        worker = Worker(self.database.url, self.table, self.router, given, tally=self.tally)
        self.workers.append(worker)
        return worker

    def work_to_the_end(self, worker: Worker | None = None, timeout: float = 20.0) -> None:
        """Until nothing is pending, through every wait."""
        working = worker or self.worker()

        def through() -> bool:
            working.run_once()
            return not self.waiting()

        wait_for(through, timeout=timeout, what="the end of all events")

    def waiting(self) -> int:
        return int(self.ask(f"SELECT count(*) FROM {self.table} WHERE status = 'pending'")[0][0])

    def effects(self) -> list[str]:
        """The events whose handlers wrote something that was committed, in the order of writing."""
        return [row[0] for row in self.ask("SELECT event FROM effects ORDER BY position")]

    def states(self) -> dict[str, Any]:
        """Message id -> status and attempts."""
        rows = self.ask(f"SELECT message_id, status, attempts_made FROM {self.table}")
        return {id: (status, attempts) for id, status, attempts in rows}

    def row(self, message_id: str) -> dict[str, Any]:
        with self.conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            [row] = cursor.execute(
                f"SELECT * FROM {self.table} WHERE message_id = %s", [message_id]
            ).fetchall()
        return row

    def set(self, message_id: str, **columns: Any) -> None:
        """Change a row behind everybody's back."""
        for column, value in columns.items():
            query = psycopg.sql.SQL("UPDATE {} SET {} = %s WHERE message_id = %s").format(
                psycopg.sql.Identifier(self.table), psycopg.sql.Identifier(column)
            )
            assert self.conn.execute(query, [value, message_id]).rowcount == 1

    def lock(self, message_id: str, by: str, ago: timedelta = timedelta(0)) -> None:
        """As if another worker had claimed it."""
        query = f"UPDATE {self.table} SET locked_by = %s, locked_at = now() - %s WHERE message_id = %s"
        assert self.conn.execute(query.encode(), [by, ago, message_id]).rowcount == 1

    def unlock(self, message_id: str) -> None:
        """As if somebody had taken it out of its worker's hands."""
        query = f"UPDATE {self.table} SET locked_by = NULL, locked_at = NULL WHERE message_id = %s"
        assert self.conn.execute(query.encode(), [message_id]).rowcount == 1

    def ask(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self.conn.execute(query.encode(), parameters).fetchall()

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


def open_harness(database: Database, *, partitioned: bool = False) -> Harness:
    conn = database.connect()
    for statement in kind(inbox=True, partitioned=partitioned).statements():
        conn.execute(statement.encode())
    conn.execute(EFFECTS)
    harness = Harness(database, conn, partitioned)
    if partitioned:
        Partitions(conn, harness.table, ahead=1).create_ahead()
    return harness


def message(id: str | None = None, body: bytes | None = b"{}", **more: Any) -> Received:
    """A message of topic `orders`, made now, under this id; without one it is known by its place."""
    headers: list[tuple[str, bytes | str | None]] = list(more.pop("headers", ()))
    if id is not None:
        headers.append(("X-Event-ID", id.encode()))
    usual = {"topic": "orders", "timestamp": datetime.now(UTC), "offset": next(_offsets)}
    return Received(body=body, headers=headers, **{**usual, **more})


def messages(ids: Iterable[str], **more: Any) -> list[Received]:
    return [message(id, **more) for id in ids]


def uuid7_at(time: datetime) -> str:
    """The id of a message that was made then."""
    return str(UUID(int=int(time.timestamp() * 1000) << 80 | 7 << 76 | 0b10 << 62 | 0x1234))


def write(conn: psycopg.Connection[Any], name: str) -> None:
    """The effect of a handler."""
    conn.execute("INSERT INTO effects (event) VALUES (%s)", [name])
