"""The outbox of jEAP in the bench: with our index on what waits, and as jEAP makes it."""

from __future__ import annotations

from dataclasses import replace

from outspark.contracts.jeap.table import READY, SHAPE
from outspark.database.names import TableName
from outspark.tools.bench.tables.table import Table

LOAD = """
-- Messages in order of id, with keys as chance spreads them and a trace each; the older ones are sent already.
-- Every second one was to be sent immediately, and its sender did not
INSERT INTO {table} (id, message, "key", topic, message_id, message_idempotence_id, message_type_name,
                     message_type_version, created, send_immediately, schedule_after, sent_scheduled,
                     trace_id_high, trace_id, span_id, trace_id_string, sampled)
SELECT n, substring(decode(repeat(md5(n::text), %(repeats)s), 'hex') FROM 1 FOR %(payload)s),
       convert_to('key-' || (hashint8(n) & 2147483647) %% %(keys)s, 'UTF8'), %(type)s::text,
       uuidv7()::text, 'bench-' || n, 'BenchEvent', '1.0.0', at, n %% 2 = 0,
       CASE n %% 2 WHEN 0 THEN at + interval '15 seconds' END,
       CASE WHEN n <= %(rows)s::bigint + %(finished)s THEN at END,
       high, low, hashint8extended(n, 3), lpad(to_hex(high), 16, '0') || lpad(to_hex(low), 16, '0'), true
FROM generate_series(%(rows)s::bigint + 1, %(rows)s::bigint + %(finished)s + %(pending)s) AS n
CROSS JOIN LATERAL (
  SELECT now() - %(age)s + n * interval '1 microsecond' AS at,
         hashint8extended(n, 1) AS high, hashint8extended(n, 2) AS low
) message"""

NEWEST_LEFT = """
-- The newest message that is neither sent nor failed
SELECT id FROM {table} WHERE sent_immediately IS NULL AND sent_scheduled IS NULL AND failed IS NULL
ORDER BY id DESC LIMIT 1"""

COUNT = """
-- Messages sent since the reveal, and all those that failed or are left
SELECT count(*) FILTER (WHERE sent_scheduled >= %(since)s),
       count(*) FILTER (WHERE failed IS NOT NULL OR resend OR coalesce(sent_immediately, sent_scheduled) IS NULL)
FROM {table}"""

JEAP = Table(
    name="jeap",
    contract="jeap",
    outbox=TableName("deferred_message", "public"),
    shape=SHAPE,
    indexes=(*SHAPE.indexes, READY),
    id="id",
    sent_at="sent_scheduled",
    load=LOAD,
    newest_left=NEWEST_LEFT,
    count=COUNT,
    note="with our index",
)
JEAP_AS_IT_IS = replace(JEAP, name="jeap_as_it_is", indexes=SHAPE.indexes, note="without our index")
