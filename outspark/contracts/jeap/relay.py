"""The statements of a lane on a jEAP outbox. There is no status: what is neither sent nor failed is waiting.

waiting ──claim, deliver──► sent        A claim leaves no mark: one relay at a time works on the table, by ShedLock,
   ▲  │                                 and its lanes own slots of keys. A sender that sends right after its commit has
   │  └──settle──► failed               until `schedule_after` for it.
   └────resend────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from outspark.contracts import relay_statements as answers
from outspark.contracts.contract import ASYNC_COMMIT
from outspark.contracts.jeap import headers
from outspark.contracts.jeap.settings import own
from outspark.contracts.jeap.table import FAIL_REASONS, UNSENT, order_key
from outspark.contracts.jeap.trace import Form, packed_headers
from outspark.contracts.relay_statements import Claim, Command, Query, RelayStatements, Timer
from outspark.database.arrays import text_array
from outspark.database.names import TableName
from outspark.database.predicates import bounded, hide_from_planner, not_blocked
from outspark.database.side_tables import attempts_table
from outspark.database.slots import FENCE, slots_table
from outspark.database.times import readable, seconds_until
from outspark.event import Event
from outspark.observability.metrics import JEAP_READY_QUERY, JEAP_TRANSMIT

if TYPE_CHECKING:
    from outspark.config.settings import SourceSettings

# Messages without a key keep their order among themselves, topic by topic. No hexadecimal begins with a slash.
_ORDER_KEY = """coalesce(encode(e.key, 'hex'), '/' || e.topic)"""
_SLOT = """mod(hashtextextended({order_key}, 0) & 255, {count})::int"""

# The words of our optional index, so that the planner finds it.
_WAITING = """(({unsent}) OR e.resend)"""
_READY = """
{waiting} AND (e.resend OR e.send_immediately IS NOT TRUE OR now() > e.schedule_after)
  AND {slot} = ANY(%(slots)s::int[])
  AND {not_blocked}"""

# A driver's work goes by columns, so the ids of a trace come in one, and there is none for the order key.
_EVENT = """e.id::text, e.topic, e.key, e.message, {created}, e.cluster_name, e.message_id,
  int8send(coalesce(e.trace_id_high, 0)) || int8send(nullif(e.trace_id, 0)) || int8send(nullif(e.span_id, 0)),
  {parent}, e.sampled, NULL::timestamptz, {cut}"""
_FOUND = """\
e.id, e.topic, e.key, e.message, e.created, e.cluster_name, e.message_id, e.trace_id_high, e.trace_id, e.span_id,
    e.parent_span_id, e.sampled, octet_length(e.message) + {header_size} AS size"""

# Only B3 tells of the parent.
_PARENT: dict[Form, str] = {"w3c": "NULL::bigint", "b3": "e.parent_span_id", "both": "e.parent_span_id"}

_CLAIM = """
-- Read the next messages of the owned slots, in the order of their ids; ownership alone keeps others away.
WITH next AS MATERIALIZED (
  SELECT {found} FROM {table} e
  WHERE {all_is_read} AND {ready}
  ORDER BY e.id LIMIT %(limit)s
), {total}
SELECT {event} FROM (SELECT * FROM next WHERE {fits}) e
"""

_CLAIM_IDS = """
-- Read named messages again: those whose wait is over, and suspects, which go out one by one.
WITH next AS MATERIALIZED (
  SELECT {found} FROM {table} e
  WHERE {all_is_read} AND e.id = ANY(%(ids)s::bigint[]) AND {still_waiting}
  ORDER BY e.id
), {total}
SELECT {event} FROM (SELECT * FROM next WHERE {fits}) e
"""

_DELIVER = """
-- Settle what the broker acknowledged, unless its sender was faster.
WITH {fence}
UPDATE {table} e SET sent_scheduled = clock_timestamp(), failed = NULL, resend = false
WHERE e.id = ANY(%(ids)s::bigint[]) AND {still_waiting} AND (SELECT holds FROM fence)
"""

_DELIVER_ALL = f"{_DELIVER}  AND {{async_commit}}"

_SETTLE = """
-- Settle the rest: skipped counts as sent, dead as failed. What waits for its next try stays as it is.
WITH {fence}, outcomes AS MATERIALIZED (
  SELECT * FROM unnest(%(ids)s::bigint[], %(states)s::text[], %(kinds)s::text[]) AS o(id, state, kind)
), settled AS (
  UPDATE {table} e
  SET sent_scheduled = CASE o.state WHEN 'done' THEN clock_timestamp() ELSE e.sent_scheduled END,
      failed = CASE o.state WHEN 'dead' THEN clock_timestamp() END,
      fail_reason = CASE o.state WHEN 'dead' THEN CASE o.kind {reasons} END ELSE e.fail_reason END,
      resend = false
  FROM outcomes o
  WHERE e.id = o.id AND o.state <> 'pending' AND {still_waiting} AND (SELECT holds FROM fence)
  RETURNING 1
)
SELECT 1 FROM settled
UNION ALL
SELECT 1 FROM outcomes o WHERE o.state = 'pending' AND (SELECT holds FROM fence)
"""

_SUSPECTS = """
-- What a crashed owner may have had in flight: the head of each slot.
SELECT e.id::text, {order_key} FROM {table} e
WHERE {waiting} AND (e.resend OR e.send_immediately IS NOT TRUE OR now() > e.schedule_after)
  AND {slot} = ANY(%(slots)s::int[]) AND {not_blocked}
ORDER BY e.id LIMIT %(limit)s
"""

_COUNT_ATTEMPT = """
-- Count an attempt before a suspect goes out, so that one that kills its lane ends as failed.
WITH {fence}, tried AS (
  INSERT INTO {attempts_table} AS a (source, event_id, attempts, error)
  SELECT %(source)s, id, 1, %(error)s FROM unnest(%(ids)s::text[]) AS id WHERE (SELECT holds FROM fence)
  ON CONFLICT (source, event_id) DO UPDATE SET attempts = a.attempts + 1, at = clock_timestamp()
  RETURNING a.event_id, a.attempts >= %(max_attempts)s AS last
), died AS (
  UPDATE {table} e SET failed = clock_timestamp(), fail_reason = 'GENERAL', resend = false
  FROM tried WHERE e.id = tried.event_id::bigint AND tried.last AND {still_waiting}
  RETURNING e.id
)
SELECT event_id, last FROM tried
"""

_NONE_WAITING = """
-- Nothing in the table says that a message failed before and waits: a new owner tries immediately
SELECT NULL::text, NULL::text, NULL::float8 WHERE false
"""

_KEYS_BEHIND_DEAD = """
-- What waits behind a failed message.
SELECT DISTINCT {order_key} FROM {table} e
WHERE e.failed IS NOT NULL AND e.resend IS NOT TRUE AND {slot} = ANY(%(slots)s::int[])
"""

_NEXT_DUE = """
-- How long until the next message is ours because its sender has not sent it
SELECT """ + seconds_until("""(
  SELECT e.schedule_after FROM {table} e
  WHERE e.schedule_after > now() AND e.send_immediately AND {unsent}
  ORDER BY e.schedule_after LIMIT 1)""")


# Nothing in the table says that a message failed before, so it may be one that waits for its next try.
_OLDEST = """
-- The message that is to go out next, but for those behind a failed one that is to hold them back
SELECT e.id::text, (extract(epoch FROM clock_timestamp() - greatest(e.created, e.schedule_after)))::float8, false
FROM {table} e
WHERE {waiting} AND (e.resend OR e.send_immediately IS NOT TRUE OR now() > e.schedule_after)
  AND {slot} = ANY(%(slots)s::int[])
  AND {order_key} NOT IN (
    SELECT {order_key} FROM {table} e WHERE e.failed IS NOT NULL AND e.resend IS NOT TRUE AND %(park)s::bool)
ORDER BY e.id LIMIT 1
"""


def relay_statements(
    table: TableName, settings: SourceSettings, conn: psycopg.Connection[Any] | None = None
) -> RelayStatements:
    """Owned slots and no mark on rows: settings allow nothing else on this table.

    Stored headers are read where the connection shows a table of them.
    """
    ordered_by, unsent = sql.SQL(_ORDER_KEY), sql.SQL(UNSENT)
    bounds = bounded(settings.batch_bytes, "id")
    event = sql.SQL(_EVENT).format(
        parent=sql.SQL(_PARENT[own(settings).trace]),
        created=sql.SQL(readable("e.created")),
        cut=bounds["cut"],
    )
    read, all_is_read = _reader(own(settings).trace), headers.still_none(table)
    header_size: sql.Composable = sql.SQL("0")
    if conn is not None and headers.look_at(conn, table).are_stored:
        event, all_is_read = headers.packed(table) + sql.SQL(", ") + event, sql.Composed([sql.SQL("true")])
        read, header_size = _with_headers(read), headers.size(table)
    parts: dict[str, sql.Composable] = {
        "table": table.identifier,
        "order_key": ordered_by,
        "not_blocked": not_blocked(ordered_by),
        "async_commit": sql.SQL(ASYNC_COMMIT),
        "unsent": unsent,
        "waiting": sql.SQL(_WAITING).format(unsent=unsent),
        "event": event,
        "all_is_read": all_is_read,
        "found": sql.SQL(_FOUND).format(header_size=header_size),
        **bounds,
        "slot": sql.SQL(_SLOT).format(order_key=ordered_by, count=sql.Literal(settings.slots)),
        "fence": sql.SQL(FENCE).format(slots_table=slots_table(table).identifier),
        "attempts_table": attempts_table(table).identifier,
    }
    reasons = (f"WHEN '{kind}' THEN '{reason}'" for kind, reason in FAIL_REASONS.items())
    parts["reasons"] = sql.SQL(" ".join(reasons))
    parts["still_waiting"] = hide_from_planner(parts["waiting"])
    parts["ready"] = sql.SQL(_READY).format(**parts)

    def text(template: str) -> str:
        return sql.SQL(template).format(**parts).as_string(None)

    return RelayStatements(
        claim=Claim(text(_CLAIM)),
        claim_ids=Claim(text(_CLAIM_IDS)),
        deliver=Command(text(_DELIVER)),
        deliver_all=Command(text(_DELIVER_ALL)),
        settle=Command(text(_SETTLE)),
        adopt=Query(text(_NONE_WAITING), answers.Adopted._make),
        suspects=Query(text(_SUSPECTS), answers.Suspect._make),
        count_attempt=Query(text(_COUNT_ATTEMPT), answers.CountedAttempt._make),
        keys_in_backoff=Query(text(_NONE_WAITING), answers.KeyInBackoff._make),
        keys_behind_dead=Query(text(_KEYS_BEHIND_DEAD), answers.KeyBehindDead._make),
        next_due=Query(text(_NEXT_DUE), answers.NextDue._make),
        oldest=Query(text(_OLDEST), answers.Oldest._make),
        pack=text_array,
        read=read,
        low_water=False,
        counts_attempts=False,
        marks_unroutable=True,
        claim_timer=Timer(JEAP_READY_QUERY),
        publish_timer=Timer(JEAP_TRANSMIT, {"delivery_type": "scheduled"}),
    )


Reader = Callable[[Sequence[tuple[Any, ...]]], list[Event]]


def _with_headers(plain: Reader) -> Reader:
    """Of rows that begin with their packed headers."""

    def read(rows: Sequence[tuple[Any, ...]]) -> list[Event]:
        events = plain([row[1:] for row in rows])
        for event, row in zip(events, rows, strict=True):
            if row[0] is not None:
                event.stored = headers.unpack(row[0])
        return events

    return read


def _reader(form: Form) -> Reader:
    def read(rows: Sequence[tuple[Any, ...]]) -> list[Event]:
        return [
            Event(
                id,
                topic,
                None if key is None else key.decode("utf-8", "surrogateescape"),
                message,
                None if ids is None else packed_headers(ids, parent, sampled, form),
                0,
                created,
                order_key(key, topic),
                cluster,
                message_id,
            )
            for id, topic, key, message, created, cluster, message_id, ids, parent, sampled, _, _ in rows
        ]

    return read
