"""Maintenance of an Open Outbox table: stats, dead events, prune and reap, each one statement."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import class_row, tuple_row

from outspark.contracts.deliveries import deliveries_table
from outspark.contracts.names import TableName
from outspark.contracts.slots import EXISTS
from outspark.contracts.upkeep import DeadEvent, DeadFilter, Finished, PrunedBatch, Reaped, Stats, like
from outspark.errors import SettingsError

NOW = "SELECT clock_timestamp()"

# Each subquery reads one partial index; DELIVERED rows, by far the most, are only counted on demand.
STATS = """
-- How much waits, how long, and in whose hands
SELECT p.pending, w.backoff, w.scheduled, l.delivering, d.dead,
  {delivered} AS delivered, %(exact)s::bool AS delivered_exact,
  clock_timestamp() - (SELECT created_at FROM {table} WHERE status = 'PENDING'
                       ORDER BY created_at LIMIT 1) AS oldest_age,
  clock_timestamp() - (SELECT available_at FROM {table} WHERE status = 'PENDING' AND available_at <= now()
                       ORDER BY available_at LIMIT 1) AS due_age,
  clock_timestamp() - l.oldest AS oldest_lease
FROM (SELECT count(*) AS pending FROM {table} WHERE status = 'PENDING') p
CROSS JOIN (SELECT count(*) FILTER (WHERE attempts > 0) AS backoff,
                   count(*) FILTER (WHERE attempts = 0) AS scheduled
            FROM {table} WHERE status = 'PENDING' AND available_at > now()) w
CROSS JOIN (SELECT count(*) AS delivering, min(locked_at) AS oldest
            FROM {table} WHERE status = 'DELIVERING') l
CROSS JOIN (SELECT count(*) AS dead FROM {table} WHERE status = 'DEAD') d"""

DELIVERED_EXACTLY = "(SELECT count(*) FROM {table} WHERE status = 'DELIVERED')"

DELIVERED_ESTIMATE = """
(SELECT CASE WHEN reltuples >= 0 THEN greatest(reltuples::bigint - p.pending - l.delivering - d.dead, 0) END
 FROM pg_catalog.pg_class WHERE oid = {name}::regclass)"""

_WHICH = """
status = 'DEAD' AND NOT %(requeued)s::bool
  AND (%(after)s::uuid IS NULL OR event_id > %(after)s::uuid)
  AND (%(ids)s::uuid[] IS NULL OR event_id = ANY(%(ids)s::uuid[]))
  AND (%(type)s::text IS NULL OR event_type LIKE %(type)s::text)
  AND (%(key)s::text IS NULL OR partition_key = %(key)s::text)
  AND (%(error)s::text IS NULL OR position(lower(%(error)s::text) IN lower(last_error)) > 0)
  AND (%(since)s::timestamptz IS NULL OR updated_at >= %(since)s::timestamptz)
  AND (%(before)s::timestamptz IS NULL OR updated_at < %(before)s::timestamptz)"""

_DEAD_EVENT = """event_id::text AS id, event_type AS type, partition_key AS key, attempts,
  last_error AS error, created_at, updated_at AS died_at, headers, octet_length(payload) AS payload_size"""

COUNT_DEAD = """
-- How many dead events fit
SELECT count(*) FROM {table} WHERE {which}"""

LIST_DEAD = """
-- Dead events that fit, the latest first, without their payload
SELECT {dead_event} FROM {table} WHERE {which} ORDER BY updated_at DESC, event_id LIMIT %(limit)s"""

PAGE_DEAD = """
-- The next page of dead events, in the order of their ids
SELECT {dead_event} FROM {table} WHERE {which} ORDER BY event_id LIMIT %(limit)s"""

SHOW_DEAD = """
-- One dead event with its payload
SELECT {dead_event}, payload FROM {table} WHERE status = 'DEAD' AND event_id = %(id)s"""

# created_at stays, so the event takes its old place in its key's order. last_error stays until the next
# outcome: whoever looks at the event meanwhile still sees why it had died.
REQUEUE = """
-- Give dead events a new life with all their attempts, due at once
WITH chosen AS MATERIALIZED (
  SELECT event_id FROM {table} WHERE {which} ORDER BY updated_at LIMIT %(limit)s FOR UPDATE
)
UPDATE {table} e
SET status = 'PENDING', attempts = 0, available_at = clock_timestamp(), updated_at = clock_timestamp(),
    locked_by = NULL, locked_at = NULL, delivered_at = NULL
FROM chosen WHERE e.event_id = chosen.event_id
RETURNING e.event_id::text"""

DISCARD = """
-- Delete dead events for good
WITH chosen AS MATERIALIZED (
  SELECT event_id FROM {table} WHERE {which} ORDER BY updated_at LIMIT %(limit)s FOR UPDATE
)
DELETE FROM {table} e USING chosen WHERE e.event_id = chosen.event_id
RETURNING e.event_id::text"""

COUNT_FINISHED = """
-- How many events ended this way before that time
SELECT count(*) FROM {table} WHERE status = {status} AND {ended} < %(before)s"""

# The array makes it a lookup by primary key; a join may be planned as a scan of the whole table.
PRUNE = """
-- Delete the next batch of finished events, oldest first
WITH gone AS (
  DELETE FROM {table} WHERE event_id = ANY(ARRAY(
    SELECT event_id FROM {table}
    WHERE status = {status} AND {ended} < %(before)s
      AND {ended} >= coalesce(%(mark)s::timestamptz, '-infinity')
    ORDER BY {ended} LIMIT %(limit)s FOR UPDATE SKIP LOCKED
  ))
  RETURNING {ended} AS ended
)
SELECT count(*), max(ended) FROM gone"""

# Times that do not change within the statement, and no function around the column: so the index is entered where
# leases ran out, and not walked over all that were ever given.
REAP = """
-- Give back leases that ran out; that counts as an attempt, and the last one makes the event dead
WITH dated AS MATERIALIZED (
  SELECT event_id FROM {table}
  WHERE status = 'DELIVERING' AND locked_at < now() - %(lease)s
  ORDER BY locked_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), undated AS MATERIALIZED (
  SELECT event_id FROM {table}
  WHERE status = 'DELIVERING' AND locked_at IS NULL AND updated_at < now() - %(lease)s
  LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), lost AS (
  (SELECT event_id FROM dated UNION ALL SELECT event_id FROM undated) LIMIT %(limit)s
)
UPDATE {table} e
SET status = CASE WHEN e.attempts + 1 >= %(max_attempts)s THEN 'DEAD' ELSE 'PENDING' END,
    attempts = e.attempts + 1,
    last_error = format('lease of %%s ran out', coalesce(e.locked_by, 'an unknown relay')),
    locked_by = NULL, locked_at = NULL, updated_at = clock_timestamp()
FROM lost WHERE e.event_id = lost.event_id
RETURNING e.event_id::text, e.status = 'DEAD'"""

FORGET_DELIVERIES = """
-- Forget where events have been that are not there any more
WITH forgotten AS (
  DELETE FROM {deliveries_table} d
  WHERE d.source = %(source)s AND NOT EXISTS (SELECT 1 FROM {table} e WHERE e.event_id = d.event_id::uuid)
  RETURNING 1
)
SELECT count(*) FROM forgotten"""

_FINISHED = {"delivered": ("DELIVERED", "delivered_at"), "dead": ("DEAD", "updated_at")}


class OpenOutboxUpkeep:
    """`Upkeep` for one table."""

    def __init__(self, table: TableName) -> None:
        self._table = table

    def now(self, conn: psycopg.Connection[Any]) -> datetime:
        now: datetime = self._rows(conn, NOW, {})[0][0]
        return now

    def stats(self, conn: psycopg.Connection[Any], *, exact: bool) -> Stats:
        name = sql.Literal(self._table.identifier.as_string(None))
        delivered = sql.SQL(DELIVERED_EXACTLY if exact else DELIVERED_ESTIMATE)
        count = delivered.format(table=self._table.identifier, name=name)
        with psycopg.Cursor(conn, row_factory=class_row(Stats)) as cursor:
            stats = cursor.execute(self._compose(STATS, delivered=count), {"exact": exact}).fetchone()
        assert stats is not None, "an aggregate always answers one row"
        return stats

    def count_dead(self, conn: psycopg.Connection[Any], which: DeadFilter) -> int:
        return int(self._rows(conn, COUNT_DEAD, _filter(which))[0][0])

    def list_dead(self, conn: psycopg.Connection[Any], which: DeadFilter, limit: int) -> list[DeadEvent]:
        statement = LIST_DEAD if which.after is None else PAGE_DEAD
        with psycopg.Cursor(conn, row_factory=class_row(DeadEvent)) as cursor:
            return cursor.execute(self._compose(statement), {**_filter(which), "limit": limit}).fetchall()

    def show_dead(self, conn: psycopg.Connection[Any], id: str) -> DeadEvent | None:
        with psycopg.Cursor(conn, row_factory=class_row(DeadEvent)) as cursor:
            return cursor.execute(self._compose(SHOW_DEAD), {"id": _uuid(id)}).fetchone()

    def requeue(self, conn: psycopg.Connection[Any], which: DeadFilter, limit: int) -> list[str]:
        return [row[0] for row in self._rows(conn, REQUEUE, {**_filter(which), "limit": limit})]

    def discard(self, conn: psycopg.Connection[Any], which: DeadFilter, limit: int) -> list[str]:
        return [row[0] for row in self._rows(conn, DISCARD, {**_filter(which), "limit": limit})]

    def count_finished(self, conn: psycopg.Connection[Any], how: Finished, before: datetime) -> int:
        return int(self._rows(conn, COUNT_FINISHED, {"before": before}, **_finished(how))[0][0])

    def prune(
        self,
        conn: psycopg.Connection[Any],
        how: Finished,
        before: datetime,
        mark: datetime | None,
        limit: int,
    ) -> PrunedBatch:
        parameters = {"before": before, "mark": mark, "limit": limit}
        return PrunedBatch(*self._rows(conn, PRUNE, parameters, **_finished(how))[0])

    def forget_settled(self, conn: psycopg.Connection[Any]) -> None:
        name = deliveries_table(self._table).identifier
        if self._rows(conn, EXISTS, {"name": name.as_string(None)})[0][0]:
            self._rows(conn, FORGET_DELIVERIES, {"source": str(self._table)}, deliveries_table=name)

    def reap(self, conn: psycopg.Connection[Any], lease: timedelta, max_attempts: int, limit: int) -> Reaped:
        rows = self._rows(conn, REAP, {"lease": lease, "max_attempts": max_attempts, "limit": limit})
        return Reaped(
            returned=tuple(id for id, dead in rows if not dead), dead=tuple(id for id, dead in rows if dead)
        )

    def _compose(self, template: str, **parts: sql.Composable) -> sql.Composed:
        which, dead_event = sql.SQL(_WHICH), sql.SQL(_DEAD_EVENT)
        return sql.SQL(template).format(
            table=self._table.identifier, which=which, dead_event=dead_event, **parts
        )

    def _rows(
        self,
        conn: psycopg.Connection[Any],
        template: str,
        parameters: Mapping[str, object],
        **parts: sql.Composable,
    ) -> list[Any]:
        with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
            return cursor.execute(self._compose(template, **parts), parameters).fetchall()


def _filter(which: DeadFilter) -> dict[str, object]:
    return {
        "ids": None if which.ids is None else [_uuid(id) for id in which.ids],
        "type": None if which.type is None else like(which.type),
        "key": which.key,
        "error": which.error,
        "since": which.since,
        "before": which.before,
        "after": None if which.after is None else _uuid(which.after),
        "requeued": which.requeued,
    }


def _finished(how: Finished) -> dict[str, sql.Composable]:
    status, column = _FINISHED[how]
    return {"status": sql.Literal(status), "ended": sql.Identifier(column)}


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise SettingsError(f"id = {text!r} is not an event id; allowed: a UUID") from error
