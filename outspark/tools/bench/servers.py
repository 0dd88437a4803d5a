"""The servers of a run: a PostgreSQL with a database for each stand, and brokers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

import psycopg
from psycopg import sql

from outspark.tools.bench import backlog
from outspark.tools.bench.plan import Plan
from outspark.tools.bench.tables import OPENOUTBOX, Table
from outspark.tools.brokers import Broker, BrokerName, open_broker
from outspark.tools.servers.postgres import Postgres

CREATE = "CREATE DATABASE {name}"
DROP = "DROP DATABASE IF EXISTS {name} WITH (FORCE)"

SHOWN = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "autovacuum",
)


@dataclass(slots=True)
class Arena:
    """A PostgreSQL with its own defaults, not tuned for the bench in any way."""

    plan: Plan
    server: Postgres = field(default_factory=Postgres)
    _databases: int = 0
    _brokers: dict[BrokerName, Broker] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.close()

    @contextmanager
    def database(self, table: Table = OPENOUTBOX, *, doorbell: bool = False) -> Iterator[str]:
        """The URL of a database with an empty outbox or inbox."""
        self._databases += 1
        name = f"bench_{self._databases}"
        self._admin(CREATE, name=name)
        try:
            url = self.server.url(name)
            with psycopg.connect(url, autocommit=True) as conn:
                backlog.create(conn, table)
                if doorbell:
                    backlog.install_doorbell(conn, self.plan.lanes)
            yield url
        finally:
            self._admin(DROP, name=name)

    @contextmanager
    def broker(self, name: BrokerName) -> Iterator[Broker]:
        """The running broker; inside another `with` for the same name, the same one."""
        if name in self._brokers:
            yield self._brokers[name]
            return
        with open_broker(name, tool="the bench", extra=name) as broker:
            self._brokers[name] = broker
            try:
                yield broker
            finally:
                del self._brokers[name]

    def settings(self) -> dict[str, str]:
        with psycopg.connect(self.server.url()) as conn:
            rows = conn.execute(
                "SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name", [list(SHOWN)]
            )
            return dict(rows.fetchall())

    def _admin(self, statement: str, **names: str) -> None:
        identifiers = {key: sql.Identifier(name) for key, name in names.items()}
        with psycopg.connect(self.server.url(), autocommit=True) as conn:
            conn.execute(sql.SQL(statement).format(**identifiers))
