"""Maintenance of a jEAP outbox: stats, failed messages and housekeeping, each one statement.

Delivered is what was sent. Dead is what has failed and is not marked for a resend; to requeue it is to mark it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row, tuple_row

from outspark.contracts import attempts
from outspark.contracts.deliveries import deliveries_table
from outspark.contracts.jeap.table import UNSENT
from outspark.contracts.names import TableName
from outspark.contracts.slots import EXISTS
from outspark.contracts.upkeep import (
    DeadEvent,
    DeadFilter,
    Finished,
    PrunedBatch,
    Reaped,
    Stats,
    like,
    whole_number,
)

NOW = "SELECT clock_timestamp()"

STATS = """
-- How much waits, how long, and what has failed
SELECT w.pending, 0 AS backoff, w.scheduled, 0 AS delivering, f.dead,
  {delivered} AS delivered, %(exact)s::bool AS delivered_exact,
  clock_timestamp() - w.oldest AS oldest_age, clock_timestamp() - w.due AS due_age, NULL::interval AS oldest_lease
FROM (
  SELECT count(*) AS pending, count(*) FILTER (WHERE NOT ready) AS scheduled, min(created) AS oldest,
         min(greatest(created, schedule_after)) FILTER (WHERE ready) AS due
  FROM (
    SELECT created, schedule_after,
           coalesce(resend OR send_immediately IS NOT TRUE OR now() > schedule_after, false) AS ready
    FROM {table} WHERE ({unsent}) OR resend
  ) waiting
) w
CROSS JOIN (SELECT count(*) AS dead FROM {table} WHERE failed IS NOT NULL AND resend IS NOT TRUE) f"""

SENT_EXACTLY = """
(SELECT count(*) FROM {table}
 WHERE (sent_immediately IS NOT NULL OR sent_scheduled IS NOT NULL) AND resend IS NOT TRUE)"""

SENT_ESTIMATE = """
(SELECT CASE WHEN reltuples >= 0 THEN greatest(reltuples::bigint - w.pending - f.dead, 0) END
 FROM pg_catalog.pg_class WHERE oid = {name}::regclass)"""

FAILED = """
-- Failed messages: those that wait for somebody, and those that are marked for a resend
SELECT count(*) FILTER (WHERE resend), count(*) FILTER (WHERE resend IS NOT TRUE)
FROM {table} WHERE failed IS NOT NULL"""

_WHICH = """
failed IS NOT NULL AND coalesce(resend, false) = %(requeued)s::bool
  AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s::bigint[]))
  AND (%(after)s::bigint IS NULL OR id > %(after)s::bigint)
  AND (%(type)s::text IS NULL OR topic LIKE %(type)s::text)
  AND (%(key)s::bytea IS NULL OR "key" = %(key)s::bytea)
  AND (%(error)s::text IS NULL OR position(lower(%(error)s::text) IN lower(fail_reason)) > 0)
  AND (%(since)s::timestamptz IS NULL OR failed >= %(since)s::timestamptz)
  AND (%(before)s::timestamptz IS NULL OR failed < %(before)s::timestamptz)"""

_DEAD_EVENT = """id::text, topic AS type, encode("key", 'escape') AS key, 0 AS attempts, fail_reason AS error,
  created AS created_at, failed AS died_at, octet_length(message) AS payload_size,
  jsonb_strip_nulls(jsonb_build_object('message_id', message_id, 'message_idempotence_id', message_idempotence_id,
    'message_type_name', message_type_name, 'message_type_version', message_type_version,
    'cluster_name', cluster_name)) AS headers"""

COUNT_DEAD = """
-- How many failed messages fit
SELECT count(*) FROM {table} WHERE {which}"""

# Ordered by the column itself: `id` alone would be the text that is answered, and 10 comes before 9 there.
LIST_DEAD = """
-- Failed messages that fit, the latest first, without their payload
SELECT {dead_event} FROM {table} WHERE {which} ORDER BY failed DESC, {table}.id LIMIT %(limit)s"""

PAGE_DEAD = """
-- The next page of failed messages, in the order of their ids
SELECT {dead_event} FROM {table} WHERE {which} ORDER BY {table}.id LIMIT %(limit)s"""

SHOW_DEAD = """
-- One failed message with its payload
SELECT {dead_event}, message AS payload FROM {table} WHERE failed IS NOT NULL AND id = %(id)s"""

REQUEUE = """
-- Mark failed messages for a resend
WITH chosen AS MATERIALIZED (
  SELECT id FROM {table} WHERE {which} ORDER BY id LIMIT %(limit)s FOR UPDATE
)
UPDATE {table} e SET resend = true FROM chosen WHERE e.id = chosen.id
RETURNING e.id::text"""

DISCARD = """
-- Delete failed messages for good
WITH chosen AS MATERIALIZED (
  SELECT id FROM {table} WHERE {which} ORDER BY id LIMIT %(limit)s FOR UPDATE
)
DELETE FROM {table} e USING chosen WHERE e.id = chosen.id
RETURNING e.id::text"""

# Sent twice over, by its sender and by the relay: the later time counts.
_ENDED = {
    "delivered": """(sent_immediately < %(before)s OR sent_scheduled < %(before)s)
      AND coalesce(greatest(sent_immediately, sent_scheduled) < %(before)s, false) AND resend IS NOT TRUE""",
    "dead": "sent_immediately IS NULL AND sent_scheduled IS NULL AND created < %(before)s",
}

COUNT_FINISHED = """
-- How many messages ended this way before that time
SELECT count(*) FROM {table} WHERE {ended}"""

# No mark and no order: both conditions have an index, and what is deleted is not found again.
PRUNE = """
-- Delete the next page of old messages
WITH gone AS (
  DELETE FROM {table} WHERE id = ANY(ARRAY(
    SELECT id FROM {table} WHERE {ended} LIMIT %(limit)s FOR UPDATE SKIP LOCKED
  ))
  RETURNING 1
)
SELECT count(*), NULL::timestamptz FROM gone"""

FORGET_DELIVERIES = """
-- Forget where messages have been that are not there any more
WITH forgotten AS (
  DELETE FROM {deliveries_table} d
  WHERE d.source = %(source)s AND NOT EXISTS (SELECT 1 FROM {table} e WHERE e.id = d.event_id::bigint)
  RETURNING 1
)
SELECT count(*) FROM forgotten"""


FORGET_ATTEMPTS = """
-- Forget the attempts of messages that do not wait any more
DELETE FROM {attempts_table} a
WHERE a.source = %(source)s AND NOT EXISTS (
  SELECT 1 FROM {table} e WHERE e.id = a.event_id::bigint AND (({unsent}) OR e.resend))
RETURNING 1"""


class JeapUpkeep:
    """`Upkeep` for one table."""

    def __init__(self, table: TableName) -> None:
        self._table = table

    def now(self, conn: psycopg.Connection[Any]) -> datetime:
        now: datetime = self._rows(conn, NOW, {})[0][0]
        return now

    def stats(self, conn: psycopg.Connection[Any], *, exact: bool) -> Stats:
        name = sql.Literal(self._table.identifier.as_string(None))
        sent = sql.SQL(SENT_EXACTLY if exact else SENT_ESTIMATE).format(
            table=self._table.identifier, name=name
        )
        with psycopg.Cursor(conn, row_factory=class_row(Stats)) as cursor:
            stats = cursor.execute(self._compose(STATS, delivered=sent), {"exact": exact}).fetchone()
        assert stats is not None, "an aggregate always answers one row"
        return stats

    def failed(self, conn: psycopg.Connection[Any]) -> tuple[int, int]:
        """How many failed messages are marked for a resend, and how many are not."""
        resend, rest = self._rows(conn, FAILED, {})[0]
        return int(resend), int(rest)

    def count_dead(self, conn: psycopg.Connection[Any], which: DeadFilter) -> int:
        return int(self._rows(conn, COUNT_DEAD, _filter(which))[0][0])

    def list_dead(self, conn: psycopg.Connection[Any], which: DeadFilter, limit: int) -> list[DeadEvent]:
        statement = LIST_DEAD if which.after is None else PAGE_DEAD
        with psycopg.Cursor(conn, row_factory=class_row(DeadEvent)) as cursor:
            return cursor.execute(self._compose(statement), {**_filter(which), "limit": limit}).fetchall()

    def show_dead(self, conn: psycopg.Connection[Any], id: str) -> DeadEvent | None:
        with psycopg.Cursor(conn, row_factory=class_row(DeadEvent)) as cursor:
            return cursor.execute(self._compose(SHOW_DEAD), {"id": whole_number(id)}).fetchone()

    def requeue(self, conn: psycopg.Connection[Any], which: DeadFilter, limit: int) -> list[str]:
        ids = [row[0] for row in self._rows(conn, REQUEUE, {**_filter(which), "limit": limit})]
        self._forget_attempts(conn, ids)
        return ids

    def discard(self, conn: psycopg.Connection[Any], which: DeadFilter, limit: int) -> list[str]:
        ids = [row[0] for row in self._rows(conn, DISCARD, {**_filter(which), "limit": limit})]
        self._forget_attempts(conn, ids)
        return ids

    def count_finished(self, conn: psycopg.Connection[Any], how: Finished, before: datetime) -> int:
        ended = sql.SQL(_ENDED[how])
        return int(self._rows(conn, COUNT_FINISHED, {"before": before}, ended=ended)[0][0])

    def prune(
        self,
        conn: psycopg.Connection[Any],
        how: Finished,
        before: datetime,
        mark: datetime | None,
        limit: int,
    ) -> PrunedBatch:
        parameters = {"before": before, "limit": limit}
        return PrunedBatch(*self._rows(conn, PRUNE, parameters, ended=sql.SQL(_ENDED[how]))[0])

    def forget_settled(self, conn: psycopg.Connection[Any]) -> None:
        source = {"source": str(self._table)}
        tried, been = (
            attempts.attempts_table(self._table).identifier,
            deliveries_table(self._table).identifier,
        )
        if self._is_there(conn, tried):
            self._rows(conn, FORGET_ATTEMPTS, source, attempts_table=tried)
        if self._is_there(conn, been):
            self._rows(conn, FORGET_DELIVERIES, source, deliveries_table=been)

    def reap(self, conn: psycopg.Connection[Any], lease: timedelta, max_attempts: int, limit: int) -> Reaped:
        """A claim leaves no mark, so there is nothing to give back."""
        return Reaped((), ())

    def _forget_attempts(self, conn: psycopg.Connection[Any], ids: list[str]) -> None:
        if ids and self._is_there(conn, attempts.attempts_table(self._table).identifier):
            statement = attempts.compose(attempts.FORGET, self._table)
            conn.execute(statement.encode(), {"source": str(self._table), "ids": ids})

    def _is_there(self, conn: psycopg.Connection[Any], name: sql.Identifier) -> bool:
        return bool(self._rows(conn, EXISTS, {"name": name.as_string(None)})[0][0])

    def _compose(self, template: str, **parts: sql.Composable) -> sql.Composed:
        return sql.SQL(template).format(
            table=self._table.identifier,
            unsent=sql.SQL(UNSENT),
            which=sql.SQL(_WHICH),
            dead_event=sql.SQL(_DEAD_EVENT),
            **parts,
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
        "ids": None if which.ids is None else [whole_number(id) for id in which.ids],
        "after": None if which.after is None else whole_number(which.after),
        "type": None if which.type is None else like(which.type),
        "key": None if which.key is None else which.key.encode(errors="surrogateescape"),
        "error": which.error,
        "since": which.since,
        "before": which.before,
        "requeued": which.requeued,
    }
