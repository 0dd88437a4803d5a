"""The statements of a lane on an omni-box outbox: claim, settle, adopt.

pending ──claim──► pending, locked ──deliver──► completed
   ▲                      │
   └────settle, adopt─────┴───────────────────► failed

A lock is `locked_at` and `locked_by` on a row that stays pending, for omni-box's own relay as for ours. Under
`lease = "slot"` a claim writes nothing, and pending goes straight to completed or failed. Each row says how many
attempts it has; one that failed has used them all, because omni-box reads no failed row with attempts left.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from outspark.contracts import relay_statements as answers
from outspark.contracts.contract import ASYNC_COMMIT, TOKEN_PREFIX
from outspark.contracts.omnibox.table import Layout, look_at
from outspark.contracts.relay_statements import Claim, Command, Query, RelayStatements
from outspark.database.arrays import Uuids
from outspark.database.names import TableName
from outspark.database.predicates import bounded, hide_from_planner, not_blocked, size
from outspark.database.slots import FENCE, slots_table
from outspark.database.times import FIRST, LOW, readable, seconds_until
from outspark.event import Event

if TYPE_CHECKING:
    from outspark.config.settings import SourceSettings

# jsonb has one way to write a value, whatever the service wrote; that text is what goes out.
_EVENT = f"""e.id::text, e.event_type, e.partition_key, convert_to(e.payload::text, 'UTF8'), e.headers, e.attempts_made,
  e.max_attempts, e.topic, e.aggregate_type, e.aggregate_id::text, e.schema_version, e.trace_id, e.correlation_id,
  e.causation_id, {readable("e.created_at")} AS created_at, e.locked_at, {{cut}}"""
_COLUMNS = """\
e.id, e.event_type, e.partition_key, e.payload, e.headers, e.attempts_made, e.max_attempts, e.topic, e.aggregate_type,
    e.aggregate_id, e.schema_version, e.trace_id, e.correlation_id, e.causation_id, e.created_at, e.locked_at"""
_SIZE = f"""{size("e.payload")} + {size("e.headers")}"""

_SLOT = """mod(hashtextextended(e.partition_key, 0) & 255, {count})::int"""

# The words of omni-box's own index, so that the planner finds it.
_FREE = """e.status = 'pending' AND e.locked_at IS NULL AND e.attempts_made < e.max_attempts"""

_DUE = """
{free} AND e.scheduled_at <= now()
  AND {slot} = ANY(%(slots)s::int[]) AND {not_blocked}"""

# omni-box has an index of what is due, which is not in order, and one in order, which is full of what is completed.
# So the first says where to enter the second; the scan of it is kept from being planned as that very walk. With our
# own index both are one.
_OLDEST = """(SELECT min(d.created_at) FROM (SELECT e.created_at FROM {table} e WHERE {due} OFFSET 0) d)"""
_FROM_LOW = LOW
_FROM_OLDEST = f"""
CASE WHEN %(low)s::timestamptz > {FIRST} THEN %(low)s::timestamptz ELSE {{oldest}} END"""
_FROM_ANYWHERE = """'-infinity'::timestamptz"""

_LOCK = """SET locked_at = now(), locked_by = %(token)s, updated_at = now()"""

# No FOR UPDATE: the slots are owned, and the UPDATE checks the lock again when a foreign relay was faster.
_CLAIM_OWNED = """
-- Claim the next events of the owned slots, oldest first, under a fresh token.
WITH next AS MATERIALIZED (
  SELECT e.id, e.created_at, {size} AS size FROM {table} e
  WHERE {due} AND e.created_at >= {start} ORDER BY e.created_at, e.id LIMIT %(limit)s
), {total}
UPDATE {table} e {lock}
FROM next
WHERE {same_row} AND {fits} AND {still_unlocked} AND {async_commit}
RETURNING {event}
"""

_CLAIM_COMPETING = """
-- Claim free events beside other relays, and skip those that another relay is claiming.
WITH next AS MATERIALIZED (
  SELECT e.id, e.created_at, {size} AS size FROM {table} e
  WHERE {free} AND e.scheduled_at <= now() AND e.event_type <> ALL(%(types)s::text[])
    AND (cardinality(%(topics)s::text[]) = 0 OR (e.topic, e.event_type) NOT IN (
      SELECT * FROM unnest(%(topics)s::text[], %(topic_types)s::text[])))
  ORDER BY e.scheduled_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), {total}
UPDATE {table} e {lock}
FROM next WHERE {same_row} AND {fits} AND {async_commit}
RETURNING {event}
"""

_CLAIM_READ = """
-- Read the next events of the owned slots, oldest first; ownership alone keeps others away.
WITH next AS MATERIALIZED (
  SELECT {columns}, {size} AS size FROM {table} e
  WHERE {due} AND e.created_at >= {start}
  ORDER BY e.created_at, e.id LIMIT %(limit)s
), {total}
SELECT {event} FROM (SELECT * FROM next WHERE {fits}) e
"""

_CLAIM_IDS = """
-- Claim named events again: heads whose wait is over, and suspects, which go out one by one.
WITH next AS MATERIALIZED (
  SELECT e.id, e.created_at, {size} AS size FROM {table} e WHERE e.id = ANY(%(ids)s::uuid[]) AND {still_free}
), {total}
UPDATE {table} e {lock}
FROM next WHERE {same_row} AND {fits} AND {still_free}
RETURNING {event}
"""

_READ_IDS = """
-- Read named events again: heads whose wait is over, and suspects, which go out one by one.
WITH next AS MATERIALIZED (
  SELECT {columns}, {size} AS size FROM {table} e WHERE e.id = ANY(%(ids)s::uuid[]) AND {still_free}
), {total}
SELECT {event} FROM (SELECT * FROM next WHERE {fits}) e
"""

_NO_FENCE = """fence AS (SELECT true AS holds)"""

_COMPLETE = """
SET status = 'completed', completed_at = clock_timestamp(), updated_at = clock_timestamp(),
    locked_at = NULL, locked_by = NULL, last_error = NULL"""

_DELIVER = """
-- Settle what the broker acknowledged.
WITH {fence}
UPDATE {table} e {complete}
WHERE e.id = ANY(%(ids)s::uuid[]) AND {still_leased} AND (SELECT holds FROM fence)
"""

_DELIVER_ALL = f"{_DELIVER}  AND {{async_commit}}"

_DELIVER_LEASE = """
-- Settle all that one claim brought, through the index on locked_at.
WITH {fence}
UPDATE {table} e {complete}
WHERE e.locked_at = %(leased_at)s AND {leased} AND (SELECT holds FROM fence) AND {async_commit}
"""

_SETTLE = """
-- Settle the rest: back after a wait, back immediately, skipped, or failed.
WITH {fence}
UPDATE {table} e
SET status = CASE WHEN o.state = 'done' THEN 'completed' WHEN {last} THEN 'failed' ELSE 'pending' END,
    attempts_made = CASE WHEN {last} THEN e.max_attempts ELSE e.attempts_made + o.counted END,
    last_error = coalesce(o.error, e.last_error),
    scheduled_at = CASE WHEN o.wait IS NULL THEN e.scheduled_at
                        ELSE clock_timestamp() + make_interval(secs => o.wait) END,
    completed_at = CASE WHEN o.state = 'done' THEN clock_timestamp() END,
    locked_at = NULL, locked_by = NULL, updated_at = clock_timestamp()
FROM unnest(%(ids)s::uuid[], %(states)s::text[], %(counts)s::int[], %(waits)s::float8[], %(errors)s::text[])
  AS o(id, state, counted, wait, error)
WHERE e.id = o.id AND {still_leased} AND (SELECT holds FROM fence)
"""

# The row may say something else now than when it was claimed.
_LAST = """(o.state = 'dead' OR o.state = 'pending' AND o.counted = 1 AND e.attempts_made + 1 >= e.max_attempts)"""

_LEASED_ROW = """e.status = 'pending' AND e.locked_by = %(token)s"""
_UNLOCKED = """e.status = 'pending' AND e.locked_at IS NULL"""

_COUNTED = """
SET status = CASE WHEN e.attempts_made + 1 >= e.max_attempts THEN 'failed' ELSE 'pending' END,
    attempts_made = least(e.attempts_made + 1, e.max_attempts), last_error = %(error)s,
    locked_at = NULL, locked_by = NULL, updated_at = clock_timestamp()"""

_ADOPT = """
-- Give back what the former owner of these slots had in flight; it counts as an attempt.
WITH adopted AS (
UPDATE {table} e {counted}
WHERE e.status = 'pending' AND e.locked_at IS NOT NULL AND starts_with(e.locked_by, {prefix})
  AND {slot} = ANY(%(slots)s::int[])
RETURNING e.id, e.partition_key, e.status = 'failed' AS dead, e.created_at
)
SELECT id::text, partition_key, dead FROM adopted a ORDER BY a.created_at, a.id
"""

_SUSPECTS = """
-- What a crashed owner may have had in flight when a claim writes nothing: the head of each slot.
SELECT e.id::text, e.partition_key FROM {table} e
WHERE {due} AND e.created_at >= {anywhere}
ORDER BY e.created_at, e.id LIMIT %(limit)s
"""

_COUNT_ATTEMPT = """
-- Count an attempt before a suspect goes out, so that one that kills its lane ends as failed.
WITH {fence}
UPDATE {table} e {counted}
WHERE e.id = ANY(%(ids)s::uuid[]) AND {still_free} AND (SELECT holds FROM fence)
RETURNING e.id::text, e.status = 'failed' AS dead
"""

_KEYS_IN_BACKOFF = """
-- Keys whose head waits for its next try; a scheduled event that never failed blocks no key.
SELECT e.id::text, e.partition_key, {until_due}
FROM {table} e
WHERE {free} AND e.scheduled_at > now() AND (e.attempts_made > 0 OR e.last_error IS NOT NULL)
  AND {slot} = ANY(%(slots)s::int[])
"""

_KEYS_BEHIND_DEAD = """
-- Keys that wait behind a failed event.
SELECT DISTINCT e.partition_key FROM {table} e WHERE e.status = 'failed' AND {slot} = ANY(%(slots)s::int[])
"""

_NEXT_DUE = """
-- How long until the next scheduled event falls due; events that failed before are waited for by name.
SELECT """ + seconds_until("""(
  SELECT e.scheduled_at FROM {table} e
  WHERE {free} AND e.scheduled_at > now() AND e.attempts_made = 0 AND e.last_error IS NULL
  ORDER BY e.scheduled_at LIMIT 1)""")


# What was tried before goes out again at its own time, and what stands behind it waits. As above, the index of what is
# due is not in order, and the scan of it is kept from being planned as a walk through all that is completed.
_NEXT = """
-- The due event that is to go out next, of those that nothing holds back
SELECT d.id::text, d.seconds, EXISTS (
  SELECT 1 FROM {table} f WHERE f.status = 'pending' AND f.locked_at IS NOT NULL)
FROM (
  SELECT e.id, e.created_at, -{until_due} AS seconds FROM {table} e
  WHERE {free} AND e.scheduled_at <= now() AND e.attempts_made = 0 AND e.last_error IS NULL
    AND {slot} = ANY(%(slots)s::int[])
    AND e.partition_key NOT IN (
      SELECT e.partition_key FROM {table} e WHERE {free} AND (e.attempts_made > 0 OR e.last_error IS NOT NULL)
      UNION ALL SELECT e.partition_key FROM {table} e
      WHERE e.status = 'pending' AND e.locked_at IS NOT NULL AND (e.attempts_made > 0 OR e.last_error IS NOT NULL)
      UNION ALL SELECT e.partition_key FROM {table} e WHERE e.status = 'failed' AND %(park)s::bool)
  OFFSET 0
) d ORDER BY d.created_at, d.id LIMIT 1
"""


def relay_statements(
    table: TableName, settings: SourceSettings, conn: psycopg.Connection[Any] | None = None
) -> RelayStatements:
    """Compose the statements for one way of working, and with a connection for the table as it is."""
    layout = Layout() if conn is None else look_at(conn, table)
    owned, marked = settings.ordering == "key", settings.lease == "row"
    parts = _parts(table, settings, layout)

    def text(template: str) -> str:
        return sql.SQL(template).format(**parts).as_string(None)

    return RelayStatements(
        claim=Claim(text((_CLAIM_OWNED if marked else _CLAIM_READ) if owned else _CLAIM_COMPETING)),
        claim_ids=Claim(text(_CLAIM_IDS if marked else _READ_IDS)),
        deliver=Command(text(_DELIVER)),
        deliver_all=Command(text(_DELIVER_LEASE if marked else _DELIVER_ALL)),
        settle=Command(text(_SETTLE)),
        adopt=Query(text(_ADOPT), answers.Adopted._make),
        suspects=Query(text(_SUSPECTS), answers.Suspect._make),
        count_attempt=Query(text(_COUNT_ATTEMPT), answers.CountedAttempt._make),
        keys_in_backoff=Query(text(_KEYS_IN_BACKOFF), answers.KeyInBackoff._make),
        keys_behind_dead=Query(text(_KEYS_BEHIND_DEAD), answers.KeyBehindDead._make),
        next_due=Query(text(_NEXT_DUE), answers.NextDue._make),
        oldest=Query(text(_NEXT), answers.Oldest._make),
        pack=Uuids,
        read=_read,
        low_water=owned,
    )


def _parts(table: TableName, settings: SourceSettings, layout: Layout) -> dict[str, sql.Composable]:
    owned, marked = settings.ordering == "key", settings.lease == "row"
    parts: dict[str, sql.Composable] = {
        "table": table.identifier,
        "columns": sql.SQL(_COLUMNS),
        "size": sql.SQL(_SIZE),
        **bounded(settings.batch_bytes, "id"),
        "async_commit": sql.SQL(ASYNC_COMMIT),
        "lock": sql.SQL(_LOCK),
        "complete": sql.SQL(_COMPLETE),
        "counted": sql.SQL(_COUNTED),
        "last": sql.SQL(_LAST),
        "free": sql.SQL(_FREE),
        "slot": sql.SQL(_SLOT).format(count=sql.Literal(settings.slots)),
        "leased": sql.SQL(_LEASED_ROW if marked else _UNLOCKED),
        "prefix": sql.Literal(TOKEN_PREFIX),
        "until_due": sql.SQL(seconds_until("e.scheduled_at")),
        "not_blocked": not_blocked(sql.SQL("e.partition_key")),
        # The time finds the partition. In a table without, it might be found by time alone, which many rows may share.
        "same_row": sql.SQL(
            "e.id = next.id AND e.created_at = next.created_at" if layout.partitioned else "e.id = next.id"
        ),
    }
    parts["event"] = sql.SQL(_EVENT).format(**parts)
    parts["still_unlocked"] = hide_from_planner(sql.SQL(_UNLOCKED))
    parts["still_free"] = hide_from_planner(parts["free"])
    parts["still_leased"] = hide_from_planner(parts["leased"])
    fence = sql.SQL(FENCE).format(slots_table=slots_table(table).identifier)
    parts["fence"] = fence if owned else sql.SQL(_NO_FENCE)
    parts["due"] = sql.SQL(_DUE).format(**parts)
    parts["oldest"] = sql.SQL(_OLDEST).format(**parts)
    parts["start"] = sql.SQL(_FROM_LOW if layout.has_ready_index else _FROM_OLDEST).format(**parts)
    parts["anywhere"] = sql.SQL(_FROM_ANYWHERE) if layout.has_ready_index else parts["oldest"]
    return parts


def _read(rows: Sequence[tuple[Any, ...]]) -> list[Event]:
    """The events of a claim, in their order: RETURNING promises none."""
    events = [
        Event(
            id=id,
            type=type,
            key=key,
            payload=payload,
            headers=_headers(headers, id, type, *described),
            attempts=attempts,
            created_at=created_at,
            order_key=key,
            topic=topic,
            max_attempts=max_attempts,
            aggregate=(aggregate_type, aggregate_id),
        )
        for (
            id,
            type,
            key,
            payload,
            headers,
            attempts,
            max_attempts,
            topic,
            aggregate_type,
            aggregate_id,
            *described,
            created_at,
            _,
            _,
        ) in rows
    ]
    events.sort(key=_order)
    return events


def _headers(
    stored: Any,
    id: str,
    type: str,
    schema_version: str | None,
    trace_id: str | None,
    correlation_id: str | None,
    causation_id: str | None,
) -> Any:
    """What omni-box's relay sends: the stored headers, and over them what the columns say.

    Headers that are no JSON object stay as they are, and the publisher refuses them.
    """
    if stored is not None and not isinstance(stored, dict):
        return stored
    headers = {**(stored or {}), "event_id": id, "event_type": type}
    if schema_version:
        headers["schema_version"] = schema_version
    if trace_id:
        headers["trace_id"] = trace_id
    if correlation_id:
        headers["correlation_id"] = correlation_id
    if causation_id:
        headers["causation_id"] = causation_id
    return headers


def _order(event: Event) -> tuple[datetime, str]:
    return event.created_at, event.id
