"""Maintenance of an omni-box inbox: that of its outbox for one consumer group or all, and stale locks of workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from outspark.contracts.maintenance import Reaped
from outspark.contracts.omnibox.inbox import KEY_HEADER, work_statements
from outspark.contracts.omnibox.maintenance import OmniboxMaintenance
from outspark.database.names import TableName
from outspark.database.times import readable

_GROUP = "AND (%(group)s::text IS NULL OR consumer_group = %(group)s::text)"
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
      FROM {table} WHERE {free} {group}) w
CROSS JOIN (SELECT count(*) AS delivering, min(locked_at) FILTER (WHERE isfinite(locked_at)) AS oldest
            FROM {table} WHERE locked_at IS NOT NULL AND status = 'pending' {group}) l
CROSS JOIN (SELECT count(*) AS dead FROM {table} WHERE status = 'failed' {group}) d"""

# The planner knows of no groups, so an estimate is one of the whole table or none. A table that neither has
# partitions nor is one has no tree.
COMPLETED_ESTIMATE = """
(SELECT CASE WHEN %(group)s::text IS NULL AND max(reltuples) >= 0
             THEN greatest(sum(greatest(reltuples, 0))::bigint - w.pending - l.delivering - d.dead, 0) END
 FROM (SELECT relid FROM pg_partition_tree({name}::regclass) UNION SELECT {name}::regclass) t
 JOIN pg_catalog.pg_class c ON c.oid = t.relid AND c.relkind <> 'p')"""

_DEAD_EVENT = f"""id::text AS id, event_type AS type, {{key}} AS key, attempts_made AS attempts,
  last_error AS error, {readable("created_at")} AS created_at,
  {readable("coalesce(updated_at, created_at)")} AS died_at, headers,
  octet_length(payload::text) AS payload_size"""


class InboxMaintenance(OmniboxMaintenance):
    """Of all consumer groups of an inbox, or of one."""

    statements = replace(
        OmniboxMaintenance.statements,
        stats=STATS,
        delivered_estimate=COMPLETED_ESTIMATE,
        dead_event=_DEAD_EVENT,
        reap="",
    )

    def __init__(self, table: TableName, group: str | None = None) -> None:
        super().__init__(table)
        self._group = group

    def forget_settled(self, conn: psycopg.Connection[Any]) -> None:
        """Outspark has no small table beside an inbox."""

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
            **super()._parts(),
            "group": sql.SQL(_GROUP),
            "key": sql.SQL("(headers ->> {})").format(sql.Literal(KEY_HEADER)),
            "free": sql.SQL(_FREE),
        }

    def _bind(self, parameters: Mapping[str, object]) -> Mapping[str, object]:
        return {**parameters, "group": self._group}
