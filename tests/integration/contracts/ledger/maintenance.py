"""Maintenance of a ledger."""

from __future__ import annotations

from outspark.contracts.maintenance_sql import MaintenanceSql, SqlMaintenance

STATS = """
-- How much waits
SELECT p.pending, p.backoff, 0::bigint AS scheduled, 0::bigint AS delivering, p.dead,
  {delivered} AS delivered, %(exact)s::bool AS delivered_exact,
  clock_timestamp() - p.oldest AS oldest_age, clock_timestamp() - p.due AS due_age, NULL::interval AS oldest_lease
FROM (SELECT count(*) FILTER (WHERE state = 'open') AS pending,
             count(*) FILTER (WHERE state = 'open' AND tries > 0) AS backoff,
             count(*) FILTER (WHERE state = 'dead') AS dead,
             min(made) FILTER (WHERE state = 'open') AS oldest,
             min(due) FILTER (WHERE state = 'open' AND due <= now()) AS due FROM {table}) p"""

WHICH = """
state = 'dead' AND NOT %(requeued)s::bool
  AND (%(after)s::uuid IS NULL OR no > %(after)s::uuid)
  AND (%(ids)s::uuid[] IS NULL OR no = ANY(%(ids)s::uuid[]))
  AND (%(type)s::text IS NULL OR kind LIKE %(type)s::text)
  AND (%(key)s::text IS NULL OR account = %(key)s::text)
  AND (%(error)s::text IS NULL OR position(lower(%(error)s::text) IN lower(why)) > 0)
  AND (%(since)s::timestamptz IS NULL OR ended >= %(since)s::timestamptz)
  AND (%(before)s::timestamptz IS NULL OR ended < %(before)s::timestamptz)"""

PRUNE = """
-- Delete the next batch of ended entries, oldest first
WITH gone AS (
  DELETE FROM {table} WHERE no IN (
    SELECT no FROM {table} WHERE state = {state} AND ended < %(before)s
      AND ended >= coalesce(%(mark)s::timestamptz, '-infinity')
    ORDER BY ended LIMIT %(limit)s FOR UPDATE SKIP LOCKED
  ) RETURNING ended
)
SELECT count(*), max(ended) FROM gone"""


class LedgerMaintenance(SqlMaintenance):
    statements = MaintenanceSql(
        stats=STATS,
        delivered_exactly="(SELECT count(*) FROM {table} WHERE state = 'done')",
        delivered_estimate="NULL::bigint",
        which=WHICH,
        dead_event="""no::text AS id, kind AS type, account AS key, tries AS attempts, why AS error,
          made AS created_at, ended AS died_at, notes AS headers, octet_length(body) AS payload_size""",
        died="ended",
        show_dead="SELECT {dead_event}, body AS payload FROM {table} WHERE state = 'dead' AND no = %(id)s",
        requeue="""UPDATE {table} SET state = 'open', tries = 0, due = clock_timestamp(), ended = NULL
          WHERE no IN (SELECT no FROM {table} WHERE {which} LIMIT %(limit)s FOR UPDATE) RETURNING no::text""",
        discard="""DELETE FROM {table}
          WHERE no IN (SELECT no FROM {table} WHERE {which} LIMIT %(limit)s FOR UPDATE) RETURNING no::text""",
        finished={"delivered": {"state": "'done'"}, "dead": {"state": "'dead'"}},
        count_finished="SELECT count(*) FROM {table} WHERE state = {state} AND ended < %(before)s",
        prune=PRUNE,
        id="no",
    )
