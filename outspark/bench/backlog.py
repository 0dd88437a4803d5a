"""A backlog as the bench uses it: loaded aside, shown to waiting lanes in one instant, timed by the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import psycopg
from psycopg import sql

from outspark import contracts
from outspark.bench.plan import Plan
from outspark.bench.tables import OPENOUTBOX, Table
from outspark.contracts.names import TableName
from outspark.errors import OutsparkError
from outspark.relay.connection import PLANNER

Between = Literal["nothing", "delivered", "stuck"]
"""What lies between the pending events, one after each: events that are delivered, or whose destination is down."""

Connection = psycopg.Connection[tuple[Any, ...]]

OUTBOX = OPENOUTBOX.outbox
ASIDE = TableName("backlog", "public")
EVENT_TYPE = "bench.event"
STUCK_TYPE = "bench.stuck"
"""Of events whose destination is down."""
POINTS = 100

VACUUM = "VACUUM (ANALYZE) {table}"

REVEAL = """
-- Put the loaded table in the place of the empty one that the lanes look at
ALTER TABLE {outbox} RENAME TO waiting_room;
ALTER TABLE {aside} RENAME TO {name}"""

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
    def last_to_first(self) -> float:
        """Rate of the last tenth over the rate of the first."""
        tenth = max(len(self.curve) // 10, 1)
        return self.curve[tenth - 1] / (self.curve[-1] - self.curve[-1 - tenth])


def create(
    conn: Connection,
    plan: Plan,
    pending: int,
    finished: int,
    between: Between = "nothing",
    table: Table = OPENOUTBOX,
) -> None:
    """The empty outbox that lanes start on, and the loaded one beside it. Indexes come after the rows."""
    for statement in contracts.get(table.contract).statements(table.outbox):
        conn.execute(statement.encode())
    for index in set(table.indexes) - set(table.shape.indexes):
        conn.execute(table.shape.create_index(table.outbox, index).encode())
    conn.execute(table.shape.create_table(ASIDE).encode())
    conn.execute(
        _compose(table.load, ASIDE), _parameters(plan, pending, finished, timedelta(hours=1), between)
    )
    for index in table.indexes:
        conn.execute(table.shape.create_index(ASIDE, index).encode())
    conn.execute(_compose(VACUUM, ASIDE))


def append(conn: Connection, plan: Plan, events: int) -> None:
    """More events for lanes that are at work."""
    conn.execute(_compose(OPENOUTBOX.load, OUTBOX), _parameters(plan, events, 0, timedelta(seconds=1)))


def watch(url: str) -> Connection:
    """A connection for looking on: it plans as the lanes do, so that its questions stay cheap."""
    conn = psycopg.connect(url, autocommit=True, application_name="outspark bench")
    for name, value in PLANNER.items():
        conn.execute(sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
    return conn


def reveal(conn: Connection, table: Table = OPENOUTBOX) -> datetime:
    """Returns the moment from which the backlog was visible to all."""
    outbox = table.outbox
    swap = sql.SQL(REVEAL).format(
        outbox=outbox.identifier, aside=ASIDE.identifier, name=sql.Identifier(outbox.table)
    )
    with conn.transaction():
        conn.execute(swap)
    at: datetime = _one(conn, "SELECT clock_timestamp()")
    return at


def is_drained(conn: Connection, table: Table = OPENOUTBOX) -> bool:
    return _one(conn, _compose(table.newest_left, table.outbox), {"type": EVENT_TYPE}) is None


def drained(conn: Connection, since: datetime, events: int, table: Table = OPENOUTBOX) -> Drained:
    """The result, once every event is delivered at its first attempt; anything else is no drain."""
    # Counting reads it all: the settings that keep a lane from sorting would only be in the way.
    conn.execute("RESET ALL")
    count = _compose(table.count, table.outbox)
    row = conn.execute(count, {"since": since, "type": EVENT_TYPE}).fetchone()
    if row != (events, 0):
        raise OutsparkError(f"of {events} events, (delivered, failed, left or wrongly delivered) are {row}")
    times = {"since": since, "events": events, "points": POINTS}
    ranked = sql.SQL(CURVE).format(table=table.outbox.identifier, sent_at=sql.Identifier(table.sent_at))
    curve = [seconds for (seconds,) in conn.execute(ranked, times)]
    return Drained(events, curve)


def _parameters(
    plan: Plan, pending: int, finished: int, age: timedelta, between: Between = "nothing"
) -> dict[str, Any]:
    return {
        "type": EVENT_TYPE,
        "stuck_type": STUCK_TYPE,
        "between": between,
        "keys": plan.keys,
        "payload": plan.payload,
        "repeats": plan.payload // 16 + 1,
        "pending": pending if between == "nothing" else pending * 2,
        "finished": finished,
        "age": age,
    }


def _compose(template: str, table: TableName) -> sql.Composed:
    return sql.SQL(template).format(table=table.identifier)


def _one(conn: Connection, statement: Any, parameters: dict[str, Any] | None = None) -> Any:
    row = conn.execute(statement, parameters).fetchone()
    return None if row is None else row[0]
