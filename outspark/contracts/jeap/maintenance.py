"""Maintenance of a jEAP outbox: stats, failed messages and housekeeping, each one statement.

Delivered is what was sent. Dead is what has failed and is not marked for a resend; to requeue it is to mark it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql

from outspark.contracts.jeap import headers
from outspark.contracts.jeap.table import UNSENT
from outspark.contracts.maintenance import DeadFilter, Finished, Gauge, PrunedBatch, Stats
from outspark.contracts.maintenance_sql import MaintenanceSql, SqlMaintenance, whole_number
from outspark.database import side_tables
from outspark.database.times import readable
from outspark.observability.metrics import JEAP_FAILED_COUNT, JEAP_READY_COUNT

STATS = """
-- How much waits, how long, and what has failed
SELECT w.pending, 0 AS backoff, w.scheduled, 0 AS delivering, f.dead,
  {delivered} AS delivered, %(exact)s::bool AS delivered_exact,
  clock_timestamp() - w.oldest AS oldest_age, clock_timestamp() - w.due AS due_age, NULL::interval AS oldest_lease
FROM (
  SELECT count(*) AS pending, count(*) FILTER (WHERE NOT ready) AS scheduled,
         min(created) FILTER (WHERE isfinite(created)) AS oldest,
         min(since) FILTER (WHERE ready AND isfinite(since)) AS due
  FROM (
    SELECT created, greatest(created, schedule_after) AS since,
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
-- Failed messages: those that wait for an operator, and those that are marked for a resend
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

_DEAD_EVENT = f"""id::text, topic AS type, encode("key", 'escape') AS key, 0 AS attempts, fail_reason AS error,
  {readable("created")} AS created_at, {readable("failed")} AS died_at, octet_length(message) AS payload_size,
  jsonb_strip_nulls(jsonb_build_object('message_id', message_id, 'message_idempotence_id', message_idempotence_id,
    'message_type_name', message_type_name, 'message_type_version', message_type_version,
    'cluster_name', cluster_name)) AS headers"""

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
){headers}
DELETE FROM {table} e USING chosen WHERE e.id = chosen.id
RETURNING e.id::text"""

# Sent twice over, by its sender and by the relay: the later time counts.
_SENT = """(sent_immediately < %(before)s OR sent_scheduled < %(before)s)
      AND coalesce(greatest(sent_immediately, sent_scheduled) < %(before)s, false) AND resend IS NOT TRUE"""
_UNSENT = "sent_immediately IS NULL AND sent_scheduled IS NULL AND created < %(before)s"

COUNT_FINISHED = """
-- How many messages ended this way before that time
SELECT count(*) FROM {table} WHERE {ended}"""

# No mark and no order: both conditions have an index, and what is deleted is not found again.
PRUNE = """
-- Delete the next page of old messages
WITH chosen AS MATERIALIZED (
  SELECT id FROM {table} WHERE {ended} LIMIT %(limit)s FOR UPDATE SKIP LOCKED
){headers}, gone AS (
  DELETE FROM {table} WHERE id = ANY(ARRAY(SELECT id FROM chosen))
  RETURNING 1
)
SELECT count(*), NULL::timestamptz FROM gone"""

FORGET_ATTEMPTS = """
-- Forget the attempts of messages that do not wait any more
DELETE FROM {attempts_table} a
WHERE a.source = %(source)s AND NOT EXISTS (
  SELECT 1 FROM {table} e WHERE e.id = a.event_id::bigint AND (({unsent}) OR e.resend))
RETURNING 1"""


class JeapMaintenance(SqlMaintenance):
    """A claim leaves no mark, so there is nothing to reap."""

    statements = MaintenanceSql(
        stats=STATS,
        delivered_exactly=SENT_EXACTLY,
        delivered_estimate=SENT_ESTIMATE,
        which=_WHICH,
        dead_event=_DEAD_EVENT,
        died="failed",
        show_dead=SHOW_DEAD,
        requeue=REQUEUE,
        discard=DISCARD,
        finished={"delivered": {"ended": _SENT}, "dead": {"ended": _UNSENT}},
        count_finished=COUNT_FINISHED,
        prune=PRUNE,
        id_type="bigint",
        read_id=whole_number,
    )

    def gauges(self, conn: psycopg.Connection[Any], stats: Stats) -> list[Gauge]:
        resend, rest = self._rows(conn, FAILED, {})[0]
        return [
            Gauge(JEAP_READY_COUNT, stats.pending - stats.scheduled),
            Gauge(JEAP_FAILED_COUNT, resend, {"resend_status": "resend_enabled"}),
            Gauge(JEAP_FAILED_COUNT, rest, {"resend_status": "resend_disabled"}),
        ]

    def requeue(self, conn: psycopg.Connection[Any], which: DeadFilter, limit: int) -> list[str]:
        ids = super().requeue(conn, which, limit)
        self._forget_attempts(conn, ids)
        return ids

    def discard(self, conn: psycopg.Connection[Any], which: DeadFilter, limit: int) -> list[str]:
        parameters = {**self._filter(which), "limit": limit}
        rows = self._rows(conn, DISCARD, parameters, headers=headers.deletion(conn, self._table))
        ids = [row[0] for row in rows]
        self._forget_attempts(conn, ids)
        return ids

    def prune(
        self,
        conn: psycopg.Connection[Any],
        how: Finished,
        before: datetime,
        mark: datetime | None,
        limit: int,
    ) -> PrunedBatch:
        parts = {**self._finished(how), "headers": headers.deletion(conn, self._table)}
        return PrunedBatch(*self._rows(conn, PRUNE, {"before": before, "limit": limit}, **parts)[0])

    def forget_settled(self, conn: psycopg.Connection[Any]) -> None:
        tried = side_tables.attempts_table(self._table).identifier
        if self._is_there(conn, tried):
            self._rows(conn, FORGET_ATTEMPTS, {"source": str(self._table)}, attempts_table=tried)
        super().forget_settled(conn)

    def _parts(self) -> dict[str, sql.Composable]:
        return {"unsent": sql.SQL(UNSENT)}

    def _key(self, key: str) -> bytes:
        return key.encode(errors="surrogateescape")

    def _forget_attempts(self, conn: psycopg.Connection[Any], ids: list[str]) -> None:
        if ids and self._is_there(conn, side_tables.attempts_table(self._table).identifier):
            statement = side_tables.compose(side_tables.FORGET_ATTEMPTS, self._table)
            conn.execute(statement.encode(), {"source": str(self._table), "ids": ids})
