"""A backlog as the bench uses it: loaded aside, revealed to waiting lanes in one instant, timed by the database, and
loaded again for the same lanes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

import psycopg
from psycopg import sql

from outspark import contracts
from outspark.contracts.contract import Contract
from outspark.contracts.omnibox import Omnibox
from outspark.database import doorbell
from outspark.database.names import TableName
from outspark.database.session import PLANNER
from outspark.errors import OutsparkError
from outspark.tools.bench.plan import Plan
from outspark.tools.bench.tables import OPENOUTBOX, Table

Between = Literal["nothing", "delivered", "stuck"]
"""Other events between the pending ones, one after each: already delivered, or for a destination that is down."""

Connection = psycopg.Connection[tuple[Any, ...]]

OUTBOX = OPENOUTBOX.outbox
ASIDE = TableName("backlog", "public")
EVENT_TYPE = "bench.event"
STUCK_TYPE = "bench.stuck"
"""Of events whose destination is down."""
POINTS = 100

VACUUM = "VACUUM (ANALYZE) {table}"

REVEAL = """
-- Replace the empty table, from which the lanes claim, by the loaded one
ALTER TABLE {outbox} RENAME TO waiting_room;
ALTER TABLE {aside} RENAME TO {name}"""

HIDE = """
-- Give the lanes the empty table back
ALTER TABLE {outbox} RENAME TO {aside_name};
ALTER TABLE waiting_room RENAME TO {name}"""

DROP = "DROP TABLE {table}"

CURVE = """
-- How many seconds after the reveal each hundredth of the backlog was delivered
SELECT extract(epoch FROM sent_at - %(since)s)::float8 FROM (
  SELECT {sent_at} AS sent_at, row_number() OVER (ORDER BY {sent_at}) AS position FROM {table}
  WHERE {sent_at} >= %(since)s
) delivered
WHERE position %% greatest(1, %(events)s / %(points)s) = 0 OR position = %(events)s
ORDER BY position"""


@dataclass(frozen=True, slots=True)
class Drained:
    """How a drain went, by the database's clock: `curve[i]` is when i + 1 hundredths were delivered."""

    events: int
    curve: list[float]

    @property
    def seconds(self) -> float:
        return self.curve[-1]

    @property
    def rate(self) -> float:
        return self.events / self.seconds

    @property
    def first_tenth(self) -> float:
        """Its duration in seconds."""
        return self.curve[self._tenth - 1]

    @property
    def last_tenth(self) -> float:
        """Its duration in seconds."""
        return self.curve[-1] - self.curve[-1 - self._tenth]

    @property
    def _tenth(self) -> int:
        return max(len(self.curve) // 10, 1)


@dataclass(slots=True)
class Backlog:
    """What the lanes of one database drain, again and again: `load`, `reveal`, `is_drained`, `drained`, `clear`."""

    conn: Connection
    plan: Plan
    table: Table = OPENOUTBOX
    pending: int = 0
    finished: int = 0
    between: Between = "nothing"
    event_type: str = EVENT_TYPE
    _rows: int = field(default=0, init=False)
    """Rows that were ever loaded into the table that is kept."""
    _revealed: datetime | None = field(default=None, init=False)

    def load(self, event_type: str = EVENT_TYPE) -> None:
        """A fresh table with a backlog; where finished rows belong to it, those that were drained stay among them."""
        self.event_type = event_type
        kept = self._rows > 0
        if not kept:
            self.conn.execute(self.table.shape.create_table(ASIDE).encode())
        age = timedelta(hours=1)
        pending = self.pending if self.between == "nothing" else self.pending * 2
        finished = 0 if kept else self.finished
        values = _values(self.plan, self._rows, finished, pending, age)
        values |= {"type": event_type, "stuck_type": STUCK_TYPE, "between": self.between}
        self.conn.execute(_compose(self.table.load, ASIDE), values)
        self._rows += finished + pending
        if not kept:
            for index in self.table.indexes:
                self.conn.execute(self.table.shape.create_index(ASIDE, index).encode())
        self._run(VACUUM)
        # Every drain begins with clean pages.
        self.conn.execute("CHECKPOINT")

    def reveal(self) -> None:
        """The clock starts when the backlog is visible to all."""
        # With the planner settings of the lanes, the bench's own queries stay cheap.
        for name, value in PLANNER.items():
            self.conn.execute(sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
        self._swap(REVEAL)
        self._revealed = self._one(sql.SQL("SELECT clock_timestamp()"))

    def is_drained(self) -> bool:
        newest = _compose(self.table.newest_left, self.table.outbox)
        return self._one(newest, {"type": self.event_type}) is None

    def drained(self) -> Drained:
        """The result, once every event is delivered at its first attempt; anything else is no drain."""
        # Counting reads the whole table: the settings that keep a lane from sorting would make it slower.
        self.conn.execute("RESET ALL")
        since = {"since": self._revealed}
        count = _compose(self.table.count, self.table.outbox)
        row = self.conn.execute(count, {**since, "type": self.event_type}).fetchone()
        if row != (self.pending, 0):
            raise OutsparkError(
                f"of {self.pending} events, (delivered, failed, left or wrongly delivered) are {row}"
            )
        outbox, sent_at = self.table.outbox.identifier, sql.Identifier(self.table.sent_at)
        ranked = sql.SQL(CURVE).format(table=outbox, sent_at=sent_at)
        times = {**since, "events": self.pending, "points": POINTS}
        return Drained(self.pending, [seconds for (seconds,) in self.conn.execute(ranked, times)])

    def clear(self) -> None:
        """Leave nothing for the server's own maintenance to do while others are measured."""
        self._swap(HIDE)
        self._revealed = None
        if self.finished:
            self._run(VACUUM)
        else:
            self._run(DROP)
            self._rows = 0
        if self.table.clear:
            self.conn.execute(self.table.clear.encode())

    def _swap(self, statements: str) -> None:
        outbox = self.table.outbox
        swap = sql.SQL(statements).format(
            outbox=outbox.identifier,
            name=sql.Identifier(outbox.table),
            aside=ASIDE.identifier,
            aside_name=sql.Identifier(ASIDE.table),
        )
        with self.conn.transaction():
            self.conn.execute(swap)

    def _run(self, template: str) -> None:
        self.conn.execute(_compose(template, ASIDE))

    def _one(self, statement: sql.SQL | sql.Composed, parameters: dict[str, Any] | None = None) -> Any:
        row = self.conn.execute(statement, parameters).fetchone()
        return None if row is None else row[0]


def create(conn: Connection, table: Table = OPENOUTBOX) -> None:
    """The empty outbox or inbox that lanes start on."""
    contract: Contract = Omnibox(inbox=True) if table.inbox else contracts.get(table.contract)
    for statement in contract.statements(table.outbox):
        conn.execute(statement.encode())
    if table.beside:
        conn.execute(table.beside.encode())
    for index in set(table.indexes) - set(table.shape.indexes):
        conn.execute(table.shape.create_index(table.outbox, index).encode())


def install_doorbell(conn: Connection, lanes: int) -> None:
    for statement in doorbell.statements(OUTBOX, lanes):
        conn.execute(statement.encode())


def append(conn: Connection, plan: Plan, events: int) -> None:
    """More events for lanes that are at work."""
    values = _values(plan, 0, 0, events, timedelta(seconds=1))
    values |= {"type": EVENT_TYPE, "stuck_type": STUCK_TYPE, "between": "nothing"}
    conn.execute(_compose(OPENOUTBOX.load, OUTBOX), values)


def _values(plan: Plan, rows: int, finished: int, pending: int, age: timedelta) -> dict[str, Any]:
    """For a table's `load`, which numbers its rows from `rows` on."""
    return {
        "rows": rows,
        "finished": finished,
        "pending": pending,
        "keys": plan.keys,
        "slots": plan.slots,
        "payload": plan.payload,
        "repeats": plan.payload // 16 + 1,
        "age": age,
    }


def _compose(template: str, table: TableName) -> sql.Composed:
    return sql.SQL(template).format(table=table.identifier)
