"""A backlog as the bench uses it: loaded aside, shown to waiting lanes in one instant, timed by the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import psycopg
from psycopg import sql

from outspark.bench.plan import Plan
from outspark.contracts.names import TableName
from outspark.contracts.openoutbox.table import statements
from outspark.errors import OutsparkError
from outspark.relay.connection import PLANNER

Between = Literal["nothing", "delivered", "stuck"]
"""What lies between the pending events, one after each: events that are delivered, or whose destination is down."""

Connection = psycopg.Connection[tuple[Any, ...]]

OUTBOX = TableName("openoutbox_events", "public")
ASIDE = TableName("backlog", "public")
EVENT_TYPE = "bench.event"
STUCK_TYPE = "bench.stuck"
"""Of events whose destination is down."""
POINTS = 100

LOAD = """
-- Events in order of time, with keys as chance spreads them; the older ones are delivered already.
-- Every second of the others may be delivered too, or be stuck; then it has keys of its own
INSERT INTO {table} (event_id, event_type, partition_key, payload, status,
                     available_at, created_at, updated_at, delivered_at)
SELECT uuidv7(), CASE WHEN stuck THEN %(stuck_type)s::text ELSE %(type)s::text END,
       CASE WHEN stuck THEN 'stuck-' ELSE 'key-' END || (hashint8(n) & 2147483647) %% %(keys)s,
       substring(decode(repeat(md5(n::text), %(repeats)s), 'hex') FROM 1 FOR %(payload)s), state, at, at, at,
       CASE state WHEN 'DELIVERED' THEN at END
FROM generate_series(1, %(finished)s::bigint + %(pending)s) AS n
CROSS JOIN LATERAL (
  SELECT n > %(finished)s AND (n - %(finished)s) %% 2 = 0 AS second,
         now() - %(age)s + n * interval '1 microsecond' AS at
) place
CROSS JOIN LATERAL (
  SELECT second AND %(between)s = 'stuck' AS stuck,
         CASE WHEN n <= %(finished)s OR second AND %(between)s = 'delivered' THEN 'DELIVERED'
              ELSE 'PENDING' END AS state
) event"""

VACUUM = "VACUUM (ANALYZE) {table}"

REVEAL = """
-- Put the loaded table in the place of the empty one that the lanes look at
ALTER TABLE {outbox} RENAME TO waiting_room;
ALTER TABLE {aside} RENAME TO {name}"""

NEWEST_LEFT = """
-- The newest event that is not delivered: the one a drain comes to last, so finding it reads one page.
-- Those that are stuck are left out
SELECT coalesce(
  (SELECT event_id FROM {table} WHERE status = 'PENDING' AND event_type = %(type)s
   ORDER BY created_at DESC LIMIT 1),
  (SELECT event_id FROM {table} WHERE status = 'DELIVERING' AND event_type = %(type)s
   ORDER BY locked_at DESC LIMIT 1))"""

CURVE = """
-- How many seconds after the reveal each hundredth of the backlog was delivered
SELECT extract(epoch FROM delivered_at - %(since)s)::float8 FROM (
  SELECT delivered_at, row_number() OVER (ORDER BY delivered_at) AS position FROM {table}
  WHERE status = 'DELIVERED' AND delivered_at >= %(since)s
) delivered
WHERE position %% greatest(1, %(events)s / %(points)s) = 0 OR position = %(events)s
ORDER BY position"""

COUNT = """
-- Events delivered since the reveal, and all those that failed an attempt, are left, or went out though stuck
SELECT count(*) FILTER (WHERE status = 'DELIVERED' AND delivered_at >= %(since)s),
       count(*) FILTER (WHERE attempts > 0 OR (status = 'DELIVERED') <> (event_type = %(type)s))
FROM {table}"""


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


def create(conn: Connection, plan: Plan, pending: int, finished: int, between: Between = "nothing") -> None:
    """The empty outbox that lanes start on, and the loaded one beside it. Indexes come after the rows."""
    for statement in statements(OUTBOX):
        conn.execute(statement.encode())
    table, *indexes = statements(ASIDE)
    conn.execute(table.encode())
    conn.execute(_compose(LOAD, ASIDE), _parameters(plan, pending, finished, timedelta(hours=1), between))
    for index in indexes:
        conn.execute(index.encode())
    conn.execute(_compose(VACUUM, ASIDE))


def append(conn: Connection, plan: Plan, events: int) -> None:
    """More events for lanes that are at work."""
    conn.execute(_compose(LOAD, OUTBOX), _parameters(plan, events, 0, timedelta(seconds=1)))


def watch(url: str) -> Connection:
    """A connection for looking on: it plans as the lanes do, so that its questions stay cheap."""
    conn = psycopg.connect(url, autocommit=True, application_name="outspark bench")
    for name, value in PLANNER.items():
        conn.execute(sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
    return conn


def reveal(conn: Connection) -> datetime:
    """Returns the moment from which the backlog was visible to all."""
    swap = sql.SQL(REVEAL).format(
        outbox=OUTBOX.identifier, aside=ASIDE.identifier, name=sql.Identifier(OUTBOX.table)
    )
    with conn.transaction():
        conn.execute(swap)
    at: datetime = _one(conn, "SELECT clock_timestamp()")
    return at


def is_drained(conn: Connection) -> bool:
    return _one(conn, _compose(NEWEST_LEFT, OUTBOX), {"type": EVENT_TYPE}) is None


def drained(conn: Connection, since: datetime, events: int) -> Drained:
    """The result, once every event is delivered at its first attempt; anything else is no drain."""
    # Counting reads it all: the settings that keep a lane from sorting would only be in the way.
    conn.execute("RESET ALL")
    row = conn.execute(_compose(COUNT, OUTBOX), {"since": since, "type": EVENT_TYPE}).fetchone()
    if row != (events, 0):
        raise OutsparkError(f"of {events} events, (delivered, failed, left or wrongly delivered) are {row}")
    times = {"since": since, "events": events, "points": POINTS}
    curve = [seconds for (seconds,) in conn.execute(_compose(CURVE, OUTBOX), times)]
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
