"""Maintenance of an omni-box inbox: stats, dead events, force-unlock, retention and stale locks, each one statement."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from outspark.contracts.maintenance import Reaped, require_reason
from outspark.contracts.maintenance_sql import MaintenanceSql, SqlMaintenance, uuid
from outspark.contracts.omnibox.inbox import KEY_HEADER, UNLOCKED, work_statements
from outspark.database.names import TableName
from outspark.database.times import mark, readable

_GROUP = "(%(group)s::text IS NULL OR consumer_group = %(group)s::text)"
_FREE = "status = 'pending' AND locked_at IS NULL AND attempts_made < max_attempts"

STATS = """
-- How much waits, how long, and in whose hands
SELECT w.pending, w.backoff, w.scheduled, l.delivering, d.dead,
  {delivered} AS delivered, %(exact)s::bool AS delivered_exact,
  w.oldest_age, w.due_age, clock_timestamp() - l.oldest AS oldest_lease
FROM (SELECT count(*) AS pending,
             count(*) FILTER (WHERE scheduled_at > now() AND attempts_made > 0) AS backoff,
             count(*) FILTER (WHERE scheduled_at > now() AND attempts_made = 0) AS scheduled,
             clock_timestamp() - min(created_at) FILTER (WHERE isfinite(created_at)) AS oldest_age,
             clock_timestamp() - min(scheduled_at)
               FILTER (WHERE scheduled_at <= now() AND isfinite(scheduled_at)) AS due_age
      FROM {table} WHERE {free} AND {group}) w
CROSS JOIN (SELECT count(*) AS delivering, min(locked_at) FILTER (WHERE isfinite(locked_at)) AS oldest
            FROM {table} WHERE locked_at IS NOT NULL AND status = 'pending' AND {group}) l
CROSS JOIN (SELECT count(*) AS dead FROM {table} WHERE status = 'failed' AND {group}) d"""

COMPLETED_EXACTLY = "(SELECT count(*) FROM {table} WHERE status = 'completed' AND {group})"

# The planner knows of no groups, so an estimate is one of the whole table or none. A table that neither has
# partitions nor is one has no tree.
COMPLETED_ESTIMATE = """
(SELECT CASE WHEN %(group)s::text IS NULL AND max(reltuples) >= 0
             THEN greatest(sum(greatest(reltuples, 0))::bigint - w.pending - l.delivering - d.dead, 0) END
 FROM (SELECT relid FROM pg_partition_tree({name}::regclass) UNION SELECT {name}::regclass) t
 JOIN pg_catalog.pg_class c ON c.oid = t.relid AND c.relkind <> 'p')"""

_WHICH = """
status = 'failed' AND NOT %(requeued)s::bool AND {group}
  AND (%(after)s::uuid IS NULL OR id > %(after)s::uuid)
  AND (%(ids)s::uuid[] IS NULL OR id = ANY(%(ids)s::uuid[]))
  AND (%(type)s::text IS NULL OR event_type LIKE %(type)s::text)
  AND (%(key)s::text IS NULL OR headers ->> {key} = %(key)s::text)
  AND (%(error)s::text IS NULL OR position(lower(%(error)s::text) IN lower(last_error)) > 0)
  AND (%(since)s::timestamptz IS NULL OR updated_at >= %(since)s::timestamptz)
  AND (%(before)s::timestamptz IS NULL OR updated_at < %(before)s::timestamptz)"""

_DEAD_EVENT = f"""id::text AS id, event_type AS type, headers ->> {{key}} AS key, attempts_made AS attempts,
  last_error AS error, {readable("created_at")} AS created_at,
  {readable("coalesce(updated_at, created_at)")} AS died_at, headers,
  octet_length(payload::text) AS payload_size"""

SHOW_DEAD = """
-- One dead event with its payload
SELECT {dead_event}, convert_to(payload::text, 'UTF8') AS payload
FROM {table} WHERE status = 'failed' AND id = %(id)s AND {group}"""

# last_error stays until the next outcome: whoever looks at the event meanwhile still sees why it had died.
REQUEUE = """
-- Give dead events a new life with all their attempts, due at once
WITH chosen AS MATERIALIZED (
  SELECT id, created_at FROM {table} WHERE {which} ORDER BY updated_at LIMIT %(limit)s FOR UPDATE
)
UPDATE {table} e
SET status = 'pending', attempts_made = 0, scheduled_at = clock_timestamp(), updated_at = clock_timestamp(),
    locked_by = NULL, locked_at = NULL, completed_at = NULL
FROM chosen WHERE e.id = chosen.id AND e.created_at = chosen.created_at
RETURNING e.id::text"""

DISCARD = """
-- Delete dead events for good; the same message would be new then
WITH chosen AS MATERIALIZED (
  SELECT id, created_at FROM {table} WHERE {which} ORDER BY updated_at LIMIT %(limit)s FOR UPDATE
)
DELETE FROM {table} e USING chosen WHERE e.id = chosen.id AND e.created_at = chosen.created_at
RETURNING e.id::text"""

# Whoever had it finds at its end that the lock is gone, and rolls its effects back.
UNLOCK = """
-- Take an event out of somebody's hands, and keep the reason
UPDATE {table} e
SET last_error = left(format('%%s: %%s (was locked by %%s since %%s)', {unlocked}, %(reason)s::text, e.locked_by,
                             to_char(e.locked_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')), 2000),
    locked_at = NULL, locked_by = NULL, updated_at = clock_timestamp()
WHERE e.id = ANY(%(ids)s::uuid[]) AND e.status = 'pending' AND e.locked_at IS NOT NULL AND {group}
RETURNING e.id::text"""

# The words of omni-box's own index on what is completed.
_COMPLETED = "status = 'completed' AND completed_at IS NOT NULL"


COUNT_FINISHED = """
-- How many events ended this way before that time
SELECT count(*) FROM {table} WHERE {finished} AND {ended} < %(before)s AND {group}"""

PRUNE = (
    """
-- Delete the next batch of finished events, oldest first
WITH old AS MATERIALIZED (
  SELECT id, created_at FROM {table}
  WHERE {finished} AND {ended} < %(before)s AND {ended} >= coalesce(%(mark)s::timestamptz, '-infinity') AND {group}
  ORDER BY {ended} LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {table} e USING old WHERE e.id = old.id AND e.created_at = old.created_at
  RETURNING e.{ended} AS ended
)
SELECT count(*), """
    + mark("max(ended)")
    + " FROM gone"
)


class InboxMaintenance(SqlMaintenance):
    """Of all consumer groups of an inbox, or of one."""

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
    )

    def __init__(self, table: TableName, group: str | None = None) -> None:
        super().__init__(table)
        self._group = group

    def unlock(self, conn: psycopg.Connection[Any], ids: list[str], reason: str) -> list[str]:
        """Take events from whoever holds them, for a reason that stays with them; answers those that were held."""
        require_reason(reason)
        return self._ids(conn, UNLOCK, {"ids": [uuid(id) for id in ids], "reason": reason})

    def forget_settled(self, conn: psycopg.Connection[Any]) -> None:
        """No small table of ours remembers anything about an inbox."""

    def reap(self, conn: psycopg.Connection[Any], lease: timedelta, max_attempts: int, limit: int) -> Reaped:
        """Each row has its own limit of attempts, so `max_attempts` does not count here."""
        statement = work_statements(self._table).release_stale
        with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
            rows = cursor.execute(statement.encode(), self._bind({"lease": lease, "limit": limit})).fetchall()
        return Reaped(
            returned=tuple(row[0] for row in rows if not row[-1]),
            dead=tuple(row[0] for row in rows if row[-1]),
        )

    def _parts(self) -> dict[str, sql.Composable]:
        return {
            "group": sql.SQL(_GROUP),
            "free": sql.SQL(_FREE),
            "key": sql.Literal(KEY_HEADER),
            "unlocked": sql.Literal(UNLOCKED),
        }

    def _bind(self, parameters: Mapping[str, object]) -> Mapping[str, object]:
        return {**parameters, "group": self._group}
