"""Enqueue on an Open Outbox table: one INSERT for any number of events, in the caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from psycopg import sql

from outspark.database.doorbell import no_lane_asleep
from outspark.database.names import TableName, bell_channel

# created_at is the database's clock, not the start of the transaction: events are in the order in which
# the lock of their aggregate was held. The clock is read once a statement and each event gets a microsecond
# more: order holds within the call whatever the ids are, and even if the clock is set back meanwhile. A row
# takes longer than a microsecond to insert, so the next call is later.
# Everything but the payload goes as text: all drivers agree on arrays of that.
INSERT = """
-- Enqueue events in the given order; an event whose id exists already is not written
WITH start AS MATERIALIZED (SELECT clock_timestamp() AS at)
INSERT INTO {table}
  (event_id, event_type, partition_key, payload, headers, status, attempts,
   available_at, created_at, updated_at)
SELECT e.id::uuid, e.type, e.key, e.payload, e.headers::jsonb, 'PENDING', 0,
       coalesce(e.available_at::timestamptz, t.at + coalesce(e.delay::interval, interval '0')), t.at, t.at
FROM start
CROSS JOIN unnest(
  CAST({ids} AS text[]), CAST({types} AS text[]), CAST({keys} AS text[]), CAST({payloads} AS bytea[]),
  CAST({headers} AS text[]), CAST({available} AS text[]), CAST({delays} AS text[])
) WITH ORDINALITY AS e(id, type, key, payload, headers, available_at, delay, position)
CROSS JOIN LATERAL (SELECT start.at + (e.position - 1) * interval '1 microsecond' AS at) t
ON CONFLICT (event_id) DO NOTHING
RETURNING event_id::text"""

RINGING_INSERT = """
-- Enqueue and ring the doorbell if a lane is asleep
WITH new AS ({insert}),
bell AS MATERIALIZED (SELECT pg_notify({channel}, '') WHERE NOT ({no_lane_asleep}))
SELECT new.event_id, (SELECT count(*) FROM bell) AS rung FROM new"""


class Row(NamedTuple):
    """One event as it goes into the table."""

    id: UUID
    type: str
    key: str | None
    payload: bytes
    headers: Mapping[str, str]
    available_at: datetime | None
    delay: timedelta | None


PARAMETERS: Final = ("ids", "types", "keys", "payloads", "headers", "available", "delays")

Placeholder = Callable[[str], sql.Composable]


def insert_sql(table: TableName, placeholder: Placeholder, *, ring: int = 0) -> str:
    """The statement, with `placeholder` for each parameter; it returns the new ids as text, one in each row.

    `ring` is the number of lanes that the statement wakes; 0 leaves waking them to the trigger, if there is one.
    """
    placeholders = {name: placeholder(name) for name in PARAMETERS}
    insert = sql.SQL(INSERT).format(table=table.identifier, **placeholders)
    if ring:
        channel = sql.Literal(bell_channel(table))
        insert = sql.SQL(RINGING_INSERT).format(
            insert=insert, channel=channel, no_lane_asleep=no_lane_asleep(table, ring)
        )
    return insert.as_string(None).strip()


def insert_params(rows: Sequence[Row]) -> dict[str, list[Any]]:
    return {
        "ids": [str(row.id) for row in rows],
        "types": [row.type for row in rows],
        "keys": [row.key for row in rows],
        "payloads": [row.payload for row in rows],
        "headers": [json.dumps(row.headers) for row in rows],
        "available": [row.available_at.isoformat() if row.available_at else None for row in rows],
        "delays": [f"{row.delay.total_seconds():.6f} seconds" if row.delay else None for row in rows],
    }
