"""Maintenance of omni-box's tables: stats, dead events, prune, reap and forced unlock, each one statement.

Delivered is what is completed, dead what has failed. The statements that an outbox and an inbox share have `{group}`,
which is empty in an outbox, and the condition of a consumer group in an inbox.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from outspark.contracts.maintenance import require_reason
from outspark.contracts.maintenance_sql import MaintenanceSql, SqlMaintenance, uuid
from outspark.database.partitions import PartitionSql
from outspark.database.times import mark, readable

UNLOCKED: Final = "unlocked by force"
"""How the last error of an event begins that was unlocked while a relay or a worker held it."""

# One pass over each partial index; completed rows, by far the most, are only counted on demand. A time without end has
# no age.
STATS = """
-- How much waits, how long, and in whose hands
SELECT p.pending, p.backoff, p.scheduled, l.delivering, d.dead,
  {delivered} AS delivered, %(exact)s::bool AS delivered_exact,
  clock_timestamp() - p.oldest AS oldest_age, clock_timestamp() - p.due AS due_age,
  clock_timestamp() - l.oldest AS oldest_lease
FROM (
  SELECT count(*) AS pending, min(created_at) FILTER (WHERE isfinite(created_at)) AS oldest,
         count(*) FILTER (WHERE scheduled_at > now() AND (attempts_made > 0 OR last_error IS NOT NULL)) AS backoff,
         count(*) FILTER (WHERE scheduled_at > now() AND attempts_made = 0 AND last_error IS NULL) AS scheduled,
         min(scheduled_at) FILTER (WHERE scheduled_at <= now() AND isfinite(scheduled_at)) AS due
  FROM {table} WHERE status = 'pending' AND locked_at IS NULL AND attempts_made < max_attempts
) p
CROSS JOIN (SELECT count(*) AS delivering, min(locked_at) FILTER (WHERE isfinite(locked_at)) AS oldest
            FROM {table} WHERE status = 'pending' AND locked_at IS NOT NULL) l
CROSS JOIN (SELECT count(*) AS dead FROM {table} WHERE status = 'failed') d"""

COMPLETED_EXACTLY = "(SELECT count(*) FROM {table} WHERE status = 'completed' {group})"

# A table that neither has partitions nor is one has no tree.
COMPLETED_ESTIMATE = """
(SELECT CASE WHEN max(c.reltuples) >= 0
             THEN greatest(sum(greatest(c.reltuples, 0))::bigint - p.pending - l.delivering - d.dead, 0) END
 FROM (SELECT relid FROM pg_partition_tree({name}::regclass) UNION SELECT {name}::regclass) t
 JOIN pg_catalog.pg_class c ON c.oid = t.relid AND c.relkind <> 'p')"""

_WHICH = """
status = 'failed' AND NOT %(requeued)s::bool {group}
  AND (%(after)s::uuid IS NULL OR id > %(after)s::uuid)
  AND (%(ids)s::uuid[] IS NULL OR id = ANY(%(ids)s::uuid[]))
  AND (%(type)s::text IS NULL OR event_type LIKE %(type)s::text)
  AND (%(key)s::text IS NULL OR {key} = %(key)s::text)
  AND (%(error)s::text IS NULL OR position(lower(%(error)s::text) IN lower(last_error)) > 0)
  AND (%(since)s::timestamptz IS NULL OR coalesce(updated_at, created_at) >= %(since)s::timestamptz)
  AND (%(before)s::timestamptz IS NULL OR coalesce(updated_at, created_at) < %(before)s::timestamptz)"""

_DEAD_EVENT = f"""id::text, event_type AS type, partition_key AS key, attempts_made AS attempts, last_error AS error,
  {readable("created_at")} AS created_at, {readable("coalesce(updated_at, created_at)")} AS died_at,
  octet_length(payload::text) AS payload_size,
  CASE WHEN jsonb_typeof(headers) = 'object' THEN headers ELSE '{{{{}}}}' END || jsonb_strip_nulls(jsonb_build_object(
    'topic', topic, 'aggregate_type', aggregate_type, 'aggregate_id', aggregate_id, 'schema_version', schema_version,
    'trace_id', trace_id, 'idempotency_key', idempotency_key, 'correlation_id', correlation_id,
    'causation_id', causation_id)) AS headers"""

SHOW_DEAD = """
-- One failed event with its payload
SELECT {dead_event}, convert_to(payload::text, 'UTF8') AS payload
FROM {table} WHERE status = 'failed' AND id = %(id)s {group}"""

# created_at stays, so the event takes its old position in its key's order. last_error stays until the next outcome, so
# that an operator still sees why the event had failed.
REQUEUE = """
-- Give failed events a new life with all their attempts, due immediately
WITH chosen AS MATERIALIZED (
  SELECT id, created_at FROM {table} WHERE {which} ORDER BY updated_at LIMIT %(limit)s FOR UPDATE
)
UPDATE {table} e
SET status = 'pending', attempts_made = 0, scheduled_at = clock_timestamp(), updated_at = clock_timestamp(),
    locked_at = NULL, locked_by = NULL, completed_at = NULL
FROM chosen WHERE e.id = chosen.id AND e.created_at = chosen.created_at
RETURNING e.id::text"""

DISCARD = """
-- Delete failed events for good; in an inbox, the same message would be new then
WITH chosen AS MATERIALIZED (
  SELECT id, created_at FROM {table} WHERE {which} ORDER BY updated_at LIMIT %(limit)s FOR UPDATE
)
DELETE FROM {table} e USING chosen WHERE e.id = chosen.id AND e.created_at = chosen.created_at
RETURNING e.id::text"""

# A relay that held it finds at its settle that the lock is gone: the event may be sent twice, and is not lost. A worker
# of an inbox finds the same when its handler ends, and rolls the effects back.
UNLOCK = """
-- Unlock events that a relay or a worker holds, and keep the reason
UPDATE {table} e
SET last_error = left(format('%%s: %%s (was locked by %%s since %%s)', {unlocked}, %(reason)s::text, e.locked_by,
                             to_char(e.locked_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')), 2000),
    locked_at = NULL, locked_by = NULL, updated_at = clock_timestamp()
WHERE e.id = ANY(%(ids)s::uuid[]) AND e.status = 'pending' AND e.locked_at IS NOT NULL {group}
RETURNING e.id::text"""

COUNT_FINISHED = """
-- How many events ended this way before that time
SELECT count(*) FROM {table} WHERE {finished} AND {ended} < %(before)s {group}"""

# The array makes it a lookup by primary key; a join may be planned as a scan of the whole table.
PRUNE = (
    """
-- Delete the next batch of finished events, oldest first
WITH gone AS (
  DELETE FROM {table} WHERE id = ANY(ARRAY(
    SELECT id FROM {table}
    WHERE {finished} AND {ended} < %(before)s AND {ended} >= coalesce(%(mark)s::timestamptz, '-infinity') {group}
    ORDER BY {ended} LIMIT %(limit)s FOR UPDATE SKIP LOCKED
  )) AND {finished}
  RETURNING {ended} AS ended
)
SELECT count(*), """
    + mark("max(ended)")
    + " FROM gone"
)

# A time that does not change within the statement, and no function around the column: so the index is entered where
# locks ran out, and not walked over all that were ever given.
REAP = """
-- Give back locks that ran out; that counts as an attempt, and the last one makes the event failed
WITH lost AS MATERIALIZED (
  SELECT id, created_at FROM {table}
  WHERE status = 'pending' AND locked_at < now() - %(lease)s
  ORDER BY locked_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE {table} e
SET status = CASE WHEN e.attempts_made + 1 >= e.max_attempts THEN 'failed' ELSE 'pending' END,
    attempts_made = least(e.attempts_made + 1, e.max_attempts),
    last_error = format('lease of %%s ran out', e.locked_by),
    locked_at = NULL, locked_by = NULL, updated_at = clock_timestamp()
FROM lost WHERE e.id = lost.id AND e.created_at = lost.created_at
RETURNING e.id::text, e.status = 'failed'"""

# Reads all of the partition, while nothing waits for it.
FINISHED = """
-- Are all events of the partition final, and since before that time?
SELECT NOT EXISTS (
  SELECT 1 FROM {partition}
  WHERE status = 'pending' OR coalesce(completed_at, updated_at, created_at) >= %(before)s)"""

# Three reads of indexes, because every writer waits meanwhile.
STILL_FINISHED = """
-- Has nothing changed in the partition since then?
SELECT NOT EXISTS (SELECT 1 FROM {partition} WHERE updated_at >= %(before)s)
   AND NOT EXISTS (SELECT 1 FROM {partition} WHERE locked_at IS NOT NULL AND status = 'pending')
   AND NOT EXISTS (SELECT 1 FROM {partition}
                   WHERE status = 'pending' AND locked_at IS NULL AND attempts_made < max_attempts)"""

PARTITIONS: Final = PartitionSql(FINISHED, STILL_FINISHED)

# The words of omni-box's own index on what is completed.
_COMPLETED = "status = 'completed' AND completed_at IS NOT NULL"


class OmniboxMaintenance(SqlMaintenance):
    statements = MaintenanceSql(
        stats=STATS,
        delivered_exactly=COMPLETED_EXACTLY,
        delivered_estimate=COMPLETED_ESTIMATE,
        which=_WHICH,
        dead_event=_DEAD_EVENT,
        show_dead=SHOW_DEAD,
        requeue=REQUEUE,
        discard=DISCARD,
        finished={
            "delivered": {"finished": _COMPLETED, "ended": "completed_at"},
            "dead": {"finished": "status = 'failed'", "ended": "updated_at"},
        },
        count_finished=COUNT_FINISHED,
        prune=PRUNE,
        reap=REAP,
    )

    def unlock(self, conn: psycopg.Connection[Any], ids: list[str], reason: str) -> list[str]:
        """Take events from the relay or worker that holds them; answers those that were held."""
        require_reason(reason)
        return self._ids(conn, UNLOCK, {"ids": [uuid(id) for id in ids], "reason": reason})

    def _parts(self) -> dict[str, sql.Composable]:
        return {
            "group": sql.SQL(""),
            "key": sql.SQL("partition_key"),
            "unlocked": sql.Literal(UNLOCKED),
        }
