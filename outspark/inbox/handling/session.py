"""A worker's session on the inbox table, and with order per key the slots that it owns and the keys that wait.

A session shows that its worker lives by an advisory lock: when it ends, other workers adopt what it had claimed.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from outspark.config.inbox import WorkSettings
from outspark.contracts.omnibox import inbox as contract
from outspark.contracts.omnibox.inbox import (
    WORKER_PREFIX,
    Row,
    WorkStatements,
    resolve_inbox,
    work_statements,
)
from outspark.contracts.omnibox.inbox_guard import GuardStatements, guard_statements
from outspark.database import slots
from outspark.database.names import TableName, lock_class
from outspark.database.session import Connection, connect
from outspark.errors import SettingsError
from outspark.inbox.event import InboxEvent, from_row

UNLOCK = """\
-- Release slots for other workers
SELECT pg_advisory_unlock(%(class)s::int, slot) FROM unnest(%(slots)s::int[]) AS slot"""

WORKERS = """\
-- How many workers of the group are there, as their sessions show?
SELECT count(*) FROM pg_catalog.pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = (%(class)s::bigint & 4294967295)::oid
  AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"""


@dataclass(slots=True)
class Head:
    """The first event of its key, which failed before: the later events of the key wait behind it."""

    key: str
    id: str
    created_at: datetime
    due: float
    """On the monotonic clock."""


@dataclass(slots=True)
class KeyOrder:
    """The slots of one worker, and the keys in them that wait. A slot is a lock that ends with the connection."""

    conn: Connection
    table: TableName
    group: str
    count: int
    statements: WorkStatements
    alive_class: int
    owned: list[int] = field(default_factory=list)
    heads: dict[str, Head] = field(default_factory=dict)

    def prepare(self) -> None:
        """SettingsError when another worker of the group splits the keys otherwise."""
        parameters = {"class": lock_class(f"inbox-layout/{self.group}", self.table), "count": self.count}
        row = self.conn.execute(slots.LAYOUT, parameters).fetchone()
        if row is not None and row[1] is not None:
            raise SettingsError(
                f"slots = {self.count} for group {self.group!r} of {self.table}, but another worker has slots = "
                f"{row[1]}; give both the same number, or stop the other one first"
            )

    def balance(self) -> None:
        """Own a fair share of the slots: release some, or try to lock more. Not while a batch is claimed."""
        share = -(-self.count // max(self._workers(), 1))
        before = list(self.owned)
        if len(self.owned) > share:
            surplus, self.owned = self.owned[share:], self.owned[:share]
            self.conn.execute(UNLOCK, {"class": self._class, "slots": surplus})
        elif len(self.owned) < share:
            self._try(share - len(self.owned))
        if self.owned != before:
            self._read_heads()

    def due(self) -> list[Head]:
        now = time.monotonic()
        return [head for head in self.heads.values() if head.due <= now]

    def next_due(self) -> float | None:
        return min((head.due for head in self.heads.values()), default=None)

    def blocked(self) -> list[str]:
        return list(self.heads)

    def wait(self, event: InboxEvent, seconds: float) -> None:
        if event.key is not None:
            self.heads[event.key] = Head(event.key, event.id, event.created_at, time.monotonic() + seconds)

    def wait_for_handler(self, event: InboxEvent) -> None:
        """Until `go_on` says that its handler is not paused any more."""
        self.wait(event, math.inf)

    def go_on(self, keys: Mapping[str, bool]) -> None:
        """Their handler is not paused any more. A head that was tried before is due; the others are in the queue."""
        for key, tried in keys.items():
            head = self.heads.get(key)
            if head is not None and head.due == math.inf:
                if tried:
                    head.due = time.monotonic()
                else:
                    del self.heads[key]

    def free(self, event: InboxEvent) -> None:
        if event.key is not None:
            self._free(event.key, event.id)

    def doubt(self, event: InboxEvent) -> None:
        """Another worker or an operator took the event: its key waits until its state is read again."""
        if event.key is not None and event.key not in self.heads:
            self.wait(event, 0.0)

    def refresh(self, head: Head) -> None:
        """Read again what became of a head that was due and could not be claimed."""
        row = self.conn.execute(
            self.statements.still_waits.encode(), {"id": head.id, "created_at": head.created_at}
        ).fetchone()
        if row is None:
            self._free(head.key, head.id)
        else:
            head.due = time.monotonic() + max(row[0], 1.0)

    @property
    def _class(self) -> int:
        return lock_class(f"inbox-slots/{self.group}", self.table)

    def _workers(self) -> int:
        row = self.conn.execute(WORKERS, {"class": self.alive_class}).fetchone()
        return int(row[0]) if row is not None else 1

    def _try(self, wanted: int) -> None:
        for slot in (slot for slot in range(self.count) if slot not in self.owned):
            rows = self.conn.execute(slots.TRY_LOCKS, {"class": self._class, "slots": [slot]}).fetchall()
            self.owned += [number for number, taken in rows if taken]
            wanted -= sum(bool(taken) for _, taken in rows)
            if wanted == 0:
                return

    def _read_heads(self) -> None:
        rows: list[Any] = self.conn.execute(
            self.statements.heads.encode(), {"group": self.group, "slots": self.owned}
        ).fetchall()
        now = time.monotonic()
        self.heads = {key: Head(key, id, created_at, now + wait) for id, created_at, key, wait in rows}

    def _free(self, key: str, id: str) -> None:
        if key in self.heads and self.heads[key].id == id:
            del self.heads[key]


# Only rows that another session writes at this moment are locked, and no longer than a commit takes.
CONFIGURE = "SET lock_timeout = '5s'"


@dataclass(slots=True)
class WorkerSession:
    conn: Connection
    statements: WorkStatements
    guard: GuardStatements
    group: str
    name: str
    alive_class: int
    instance: int
    """Names this session in its locks on rows, and in the lock that shows that it lives."""
    order: KeyOrder | None
    _claims: int = 0

    def token(self) -> str:
        self._claims += 1
        return f"{WORKER_PREFIX}{self.instance}/{self.name}/{self._claims}"

    def rows(self, statement: str, parameters: dict[str, Any]) -> list[Any]:
        return self.conn.execute(statement.encode(), parameters).fetchall()

    def claim(self, statement: str, parameters: dict[str, Any]) -> list[InboxEvent]:
        return [from_row(row) for row in contract.read_claim(self.rows(statement, parameters))]

    def give_back(self, statement: str, parameters: dict[str, Any]) -> list[tuple[InboxEvent, bool]]:
        """Events taken back from other workers, each with True if its last attempt was used up and it is dead."""
        return [(from_row(Row(*row[:-1])), row[-1]) for row in self.rows(statement, parameters)]

    def close(self) -> None:
        self.conn.close()


def open_worker_session(url: str, table: TableName, settings: WorkSettings) -> WorkerSession:
    conn = connect(url, f"outspark inbox {settings.name}")
    try:
        conn.execute(CONFIGURE)
        return _prepare(conn, resolve_inbox(conn, table), settings)
    except BaseException:
        conn.close()
        raise


def _prepare(conn: Connection, table: TableName, settings: WorkSettings) -> WorkerSession:
    ordered = settings.ordering == "key"
    partitioned = conn.execute(contract.PARTITIONED, {"name": table.identifier.as_string(conn)}).fetchone()
    statements = work_statements(
        table,
        settings.slots if ordered else None,
        partitioned=partitioned == (True,),
        most_bytes=settings.batch_bytes,
    )
    alive = lock_class(f"inbox-alive/{settings.group}", table)
    order = KeyOrder(conn, table, settings.group, settings.slots, statements, alive) if ordered else None
    if order is not None:
        order.prepare()
    # Before the first claim, or other workers would adopt it immediately.
    instance = _show_alive(conn, alive)
    return WorkerSession(
        conn, statements, guard_statements(table), settings.group, settings.name, alive, instance, order
    )


def _show_alive(conn: Connection, alive: int) -> int:
    while True:
        instance = secrets.randbelow(1 << 31)
        row = conn.execute(contract.ALIVE.encode(), {"class": alive, "instance": instance}).fetchone()
        if row is not None and row[0]:
            return instance
