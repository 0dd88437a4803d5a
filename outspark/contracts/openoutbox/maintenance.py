"""Maintenance of an Open Outbox table: stats, dead events, prune and reap, each one statement."""

from __future__ import annotations

from outspark.contracts.maintenance_sql import MaintenanceSql, SqlMaintenance
from outspark.database.times import mark, readable

# Each subquery reads one partial index; DELIVERED rows, by far the most, are only counted on demand. A time without
# end has no age.
STATS = """
-- How much waits, how long, and in whose hands
SELECT p.pending, w.backoff, w.scheduled, l.delivering, d.dead,
  {delivered} AS delivered, %(exact)s::bool AS delivered_exact,
  clock_timestamp() - (SELECT created_at FROM {table} WHERE status = 'PENDING'
                         AND created_at > '-infinity' AND created_at < 'infinity'
                       ORDER BY created_at LIMIT 1) AS oldest_age,
  clock_timestamp() - (SELECT available_at FROM {table} WHERE status = 'PENDING' AND available_at <= now()
                         AND available_at > '-infinity'
                       ORDER BY available_at LIMIT 1) AS due_age,
  clock_timestamp() - l.oldest AS oldest_lease
FROM (SELECT count(*) AS pending FROM {table} WHERE status = 'PENDING') p
CROSS JOIN (SELECT count(*) FILTER (WHERE attempts > 0) AS backoff,
                   count(*) FILTER (WHERE attempts = 0) AS scheduled
            FROM {table} WHERE status = 'PENDING' AND available_at > now()) w
CROSS JOIN (SELECT count(*) AS delivering, min(locked_at) FILTER (WHERE isfinite(locked_at)) AS oldest
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

_DEAD_EVENT = f"""event_id::text AS id, event_type AS type, partition_key AS key, attempts,
  last_error AS error, {readable("created_at")} AS created_at, {readable("updated_at")} AS died_at,
  headers, octet_length(payload) AS payload_size"""

SHOW_DEAD = """
-- One dead event with its payload
SELECT {dead_event}, payload FROM {table} WHERE status = 'DEAD' AND event_id = %(id)s"""

# created_at stays, so the event takes its old position in its key's order. last_error stays until the next outcome, so
# that an operator still sees why the event had died.
REQUEUE = """
-- Give dead events a new life with all their attempts, due immediately
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
SELECT count(*) FROM {table} WHERE {finished} AND {ended} < %(before)s"""

# The array makes it a lookup by primary key; a join may be planned as a scan of the whole table.
PRUNE = (
    """
-- Delete the next batch of finished events, oldest first
WITH gone AS (
  DELETE FROM {table} WHERE event_id = ANY(ARRAY(
    SELECT event_id FROM {table}
    WHERE {finished} AND {ended} < %(before)s
      AND {ended} >= coalesce(%(mark)s::timestamptz, '-infinity')
    ORDER BY {ended} LIMIT %(limit)s FOR UPDATE SKIP LOCKED
  ))
  RETURNING {ended} AS ended
)
SELECT count(*), """
    + mark("max(ended)")
    + " FROM gone"
)

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


class OpenOutboxMaintenance(SqlMaintenance):
    statements = MaintenanceSql(
        stats=STATS,
        delivered_exactly=DELIVERED_EXACTLY,
        delivered_estimate=DELIVERED_ESTIMATE,
        which=_WHICH,
        dead_event=_DEAD_EVENT,
        show_dead=SHOW_DEAD,
        requeue=REQUEUE,
        discard=DISCARD,
        finished={
            "delivered": {"finished": "status = 'DELIVERED'", "ended": "delivered_at"},
            "dead": {"finished": "status = 'DEAD'", "ended": "updated_at"},
        },
        count_finished=COUNT_FINISHED,
        prune=PRUNE,
        reap=REAP,
        id="event_id",
    )
