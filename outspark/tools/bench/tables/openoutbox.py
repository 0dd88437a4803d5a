"""The table of Open Outbox in the bench."""

from __future__ import annotations

from outspark.contracts.openoutbox.table import SHAPE
from outspark.database.names import TableName
from outspark.tools.bench.tables.table import Table

LOAD = """
-- Events in order of time; the older ones are delivered already. Chance spreads them over the keys, but each slot has
-- as many keys, so that no lane works alone on the last events.
-- Every second of the others may be delivered too, or be stuck; then it has keys of its own
WITH keys AS MATERIALIZED (
  SELECT array_agg(name) AS names FROM (
    SELECT name, row_number() OVER (PARTITION BY (hashtextextended(name, 0) & 255) %% %(slots)s ORDER BY k) AS position
    FROM generate_series(1, 2 * %(keys)s) AS k CROSS JOIN LATERAL (SELECT 'key-' || k AS name) named
  ) key WHERE position <= %(keys)s / %(slots)s
)
INSERT INTO {table} (event_id, event_type, partition_key, payload, status,
                     available_at, created_at, updated_at, delivered_at)
SELECT uuidv7(), CASE WHEN stuck THEN %(stuck_type)s::text ELSE %(type)s::text END,
       CASE WHEN stuck THEN 'stuck-' ELSE '' END || names[1 + (hashint8(n) & 2147483647) %% cardinality(names)],
       substring(decode(repeat(md5(n::text), %(repeats)s), 'hex') FROM 1 FOR %(payload)s), state, at, at, at,
       CASE state WHEN 'DELIVERED' THEN at END
FROM keys CROSS JOIN generate_series(%(rows)s::bigint + 1, %(rows)s::bigint + %(finished)s + %(pending)s) AS n
CROSS JOIN LATERAL (
  SELECT n > %(rows)s::bigint + %(finished)s AND (n - %(rows)s - %(finished)s) %% 2 = 0 AS second,
         now() - %(age)s + n * interval '1 microsecond' AS at
) numbered
CROSS JOIN LATERAL (
  SELECT second AND %(between)s = 'stuck' AS stuck,
         CASE WHEN n <= %(rows)s::bigint + %(finished)s OR second AND %(between)s = 'delivered' THEN 'DELIVERED'
              ELSE 'PENDING' END AS state
) event"""

NEWEST_LEFT = """
-- The newest event that is not delivered: a drain delivers it last, so finding it reads one page.
-- Stuck events are left out
SELECT coalesce(
  (SELECT event_id FROM {table} WHERE status = 'PENDING' AND event_type = %(type)s
   ORDER BY created_at DESC LIMIT 1),
  (SELECT event_id FROM {table} WHERE status = 'DELIVERING' AND event_type = %(type)s
   ORDER BY locked_at DESC LIMIT 1))"""

COUNT = """
-- Events delivered since the reveal, and all those that failed an attempt, are left, or went out though stuck
SELECT count(*) FILTER (WHERE status = 'DELIVERED' AND delivered_at >= %(since)s),
       count(*) FILTER (WHERE attempts > 0 OR (status = 'DELIVERED') <> (event_type = %(type)s))
FROM {table}"""

OPENOUTBOX = Table(
    name="openoutbox",
    contract="openoutbox",
    outbox=TableName("openoutbox_events", "public"),
    shape=SHAPE,
    indexes=SHAPE.indexes,
    id="event_id",
    sent_at="delivered_at",
    load=LOAD,
    newest_left=NEWEST_LEFT,
    count=COUNT,
)
