"""The inbox of omni-box in the bench, with the table that its handler writes to."""

from __future__ import annotations

from outspark.contracts.omnibox.table import INBOX as SHAPE
from outspark.database.names import TableName
from outspark.tools.bench.tables.table import Table

EFFECTS = """
-- The table that the handler writes to
CREATE TABLE bench_effects (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id text NOT NULL, number bigint NOT NULL)"""

CLEAR = """
-- No effects of earlier rounds
TRUNCATE bench_effects"""

LOAD = """
-- Messages in the order of their acceptance, with keys as chance spreads them; the older ones are handled already
INSERT INTO {table} (id, event_type, message_id, consumer_group, source, payload, headers, status,
                     scheduled_at, completed_at, created_at, updated_at)
SELECT uuidv7(), %(type)s::text, 'message-' || n, 'bench', 'bench',
       jsonb_build_object('number', n, 'text', left(repeat(md5(n::text), %(repeats)s), %(payload)s - 32)),
       jsonb_build_object('X-Event-ID', 'message-' || n,
                          'partition_key', 'key-' || (hashint8(n) & 2147483647) %% %(keys)s),
       CASE WHEN done THEN 'completed' ELSE 'pending' END, at, CASE WHEN done THEN at END, at, at
FROM generate_series(%(rows)s::bigint + 1, %(rows)s::bigint + %(finished)s + %(pending)s) AS n
CROSS JOIN LATERAL (
  SELECT now() - %(age)s + n * interval '1 microsecond' AS at, n <= %(rows)s::bigint + %(finished)s AS done
) message"""

NEWEST_LEFT = """
-- The newest event that waits for its handler, or else one that a worker has claimed
SELECT coalesce(
  (SELECT id FROM {table} WHERE status = 'pending' AND locked_at IS NULL AND attempts_made < max_attempts
   ORDER BY scheduled_at DESC LIMIT 1),
  (SELECT id FROM {table} WHERE status = 'pending' AND locked_at IS NOT NULL ORDER BY locked_at DESC LIMIT 1))"""

COUNT = """
-- Events completed since the reveal, and all those that failed an attempt, are left, or whose effect is not there once
SELECT count(*) FILTER (WHERE status = 'completed' AND completed_at >= %(since)s),
       count(*) FILTER (WHERE status <> 'completed' OR attempts_made > 0
                        OR completed_at >= %(since)s AND effects IS DISTINCT FROM 1)
FROM {table} LEFT JOIN (
  SELECT message_id, count(*) AS effects FROM bench_effects GROUP BY message_id
) written USING (message_id)"""

INBOX = Table(
    name="inbox",
    contract="omnibox",
    outbox=TableName("inbox_events", "public"),
    shape=SHAPE,
    indexes=SHAPE.indexes,
    id="id",
    sent_at="completed_at",
    load=LOAD,
    newest_left=NEWEST_LEFT,
    count=COUNT,
    inbox=True,
    beside=EFFECTS,
    clear=CLEAR,
)
