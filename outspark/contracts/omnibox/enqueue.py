"""Enqueue on an omni-box outbox: one INSERT for any number of events, in the caller's transaction.

In a table without partitions the unique indexes find events that exist already. With partitions they cannot, because
`created_at` is part of each index and differs with every try. There, one statement locks the idempotency keys, and the
INSERT that follows it sees what the previous holder of the locks has committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from psycopg import sql

from outspark.database.names import TableName

# created_at is the database's clock, not the start of the transaction: events are in the order in which
# the lock of their aggregate was held. The clock is read once a statement and each event gets a microsecond
# more: order holds within the call whatever the ids are, and even if the clock is set back meanwhile. A row
# takes longer than a microsecond to insert, so the next call is later.
# Everything goes as text: all drivers agree on arrays of that.
INSERT = """
-- Enqueue events in the given order; an event whose id or idempotency key exists already is not written
WITH start AS MATERIALIZED (SELECT clock_timestamp() AS at)
INSERT INTO {table}
  (id, event_type, aggregate_type, aggregate_id, topic, partition_key, payload, headers, trace_id, idempotency_key,
   correlation_id, causation_id, schema_version, status, attempts_made, max_attempts,
   scheduled_at, created_at, updated_at)
SELECT e.id::uuid, e.type, e.aggregate_type, e.aggregate_id::uuid, e.topic, e.key, e.payload::jsonb, e.headers::jsonb,
       e.trace_id, e.idempotency_key, e.correlation_id, e.causation_id, e.schema_version, 'pending', 0,
       e.max_attempts::int,
       coalesce(e.scheduled_at::timestamptz, t.at + coalesce(e.delay::interval, interval '0')), t.at, t.at
FROM start
CROSS JOIN unnest({arrays}) WITH ORDINALITY AS e({fields}, position)
CROSS JOIN LATERAL (SELECT start.at + (e.position - 1) * interval '1 microsecond' AS at) t
WHERE {unknown}
ON CONFLICT DO NOTHING
RETURNING id::text"""

_UNKNOWN = """
NOT EXISTS (SELECT 1 FROM {table} k WHERE k.id = e.id::uuid)
  AND (e.idempotency_key IS NULL OR NOT EXISTS (
    SELECT 1 FROM {table} k WHERE k.idempotency_key = e.idempotency_key))"""

IS_PARTITIONED = """
-- Is the table partitioned?
SELECT relkind = 'p' FROM pg_catalog.pg_class WHERE oid = to_regclass({name})"""

LOCK = """
-- Until the end of the transaction no other transaction enqueues with these idempotency keys
SELECT pg_advisory_xact_lock(o.number), current_setting('transaction_isolation') FROM (
  SELECT DISTINCT hashtextextended(concat(to_regclass({name})::oid, '/', k), 0) AS number
  FROM unnest(CAST({keys} AS text[])) AS k ORDER BY number
) o"""

KNOWN = """
-- Which events have these idempotency keys, the first of each last
SELECT idempotency_key, id::text FROM {table}
WHERE idempotency_key = ANY(CAST({keys} AS text[])) ORDER BY created_at DESC"""


class Row(NamedTuple):
    """One event as it goes into the table, in the order of the statement's arrays."""

    id: UUID
    type: str
    aggregate_type: str
    aggregate_id: UUID
    topic: str
    key: str
    payload: str
    headers: str | None
    trace_id: str | None
    idempotency_key: str | None
    correlation_id: str | None
    causation_id: str | None
    schema_version: str | None
    max_attempts: int
    scheduled_at: datetime | None
    delay: timedelta | None


PARAMETERS: Final = tuple(f"{field}_array" for field in Row._fields)
KEYS: Final = "keys"

Placeholder = Callable[[str], sql.Composable]


def insert_sql(table: TableName, placeholder: Placeholder, *, partitioned: bool) -> str:
    """The statement, with `placeholder` for each parameter; it returns the new ids as text, one in each row."""
    arrays = sql.SQL(", ").join(
        sql.SQL("CAST({} AS text[])").format(placeholder(name)) for name in PARAMETERS
    )
    unknown = sql.SQL(_UNKNOWN).format(table=table.identifier) if partitioned else sql.SQL("true")
    fields = sql.SQL(", ").join(map(sql.Identifier, Row._fields))
    return _text(INSERT, table=table.identifier, arrays=arrays, fields=fields, unknown=unknown)


def is_partitioned_sql(table: TableName, placeholder: Placeholder) -> str:
    """It returns no row if there is no such table. It has no parameters."""
    return _text(IS_PARTITIONED, name=_name(table))


def lock_sql(table: TableName, placeholder: Placeholder) -> str:
    """The locks do not depend on how the table is spelt. The second column is the transaction's isolation level."""
    return _text(LOCK, name=_name(table), keys=placeholder(KEYS))


def known_sql(table: TableName, placeholder: Placeholder) -> str:
    return _text(KNOWN, table=table.identifier, keys=placeholder(KEYS))


def insert_params(rows: Sequence[Row]) -> dict[str, list[Any]]:
    return {name: [_plain(row[index]) for row in rows] for index, name in enumerate(PARAMETERS)}


def _plain(value: object) -> str | None:
    match value:
        case None:
            return None
        case datetime():
            return value.isoformat()
        case timedelta():
            return f"{value.total_seconds():.6f} seconds"
        case _:
            return str(value)


def _name(table: TableName) -> sql.Literal:
    return sql.Literal(table.identifier.as_string(None))


def _text(template: str, **parts: sql.Composable) -> str:
    return sql.SQL(template).format(**parts).as_string(None).strip()
