"""The statements of a lane on an Open Outbox table: claim, settle, adopt.

PENDING ──claim──► DELIVERING ──deliver──► DELIVERED
   ▲                   │
   └──settle, adopt────┴──────────────────► DEAD

Under `lease = "slot"` a claim writes nothing, and PENDING goes straight to DELIVERED or DEAD.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from psycopg import sql

from outspark.contracts import relay_statements as answers
from outspark.contracts.contract import ASYNC_COMMIT, TOKEN_PREFIX
from outspark.contracts.relay_statements import Claim, Command, Query, RelayStatements
from outspark.database.arrays import Uuids
from outspark.database.names import TableName
from outspark.database.predicates import bounded, hide_from_planner, not_blocked, size
from outspark.database.slots import FENCE, slots_table
from outspark.database.times import LOW, readable, seconds_until
from outspark.event import Event

if TYPE_CHECKING:
    from outspark.config.settings import SourceSettings

# Most events carry no headers, and no headers cost the driver nothing.
_EVENT = f"""e.event_id::text, e.event_type, e.partition_key, e.payload, nullif(e.headers, '{{{{}}}}'), e.attempts,
  {readable("e.created_at")} AS created_at, e.locked_at, {{cut}}"""
_COLUMNS = """\
e.event_id, e.event_type, e.partition_key, e.payload, e.headers, e.attempts, e.created_at, e.locked_at"""
_SIZE = f"""octet_length(e.payload) + {size("e.headers")}"""

# Events without a key have no order among themselves, so their id spreads them.
_SLOT = """mod(hashtextextended(coalesce(e.partition_key, e.event_id::text), 0) & 255, {count})::int"""

_READY = """
e.status = 'PENDING' AND e.created_at >= {low} AND e.available_at <= now()
  AND {slot} = ANY(%(slots)s::int[])
  AND {not_blocked}
  AND (e.partition_key IS NOT NULL OR e.event_type <> ALL(%(types)s::text[]))"""

# No FOR UPDATE: the slots are owned, and the UPDATE checks the status again when a foreign relay was faster.
_CLAIM_OWNED = """
-- Claim the next events of the owned slots, oldest first, under a fresh token.
WITH next AS MATERIALIZED (
  SELECT e.event_id, {size} AS size FROM {table} e
  WHERE {ready} ORDER BY e.created_at, e.event_id LIMIT %(limit)s
), {total}
UPDATE {table} e
SET status = 'DELIVERING', locked_by = %(token)s, locked_at = now(), updated_at = now()
FROM next WHERE e.event_id = next.event_id AND {fits} AND {still_pending} AND {async_commit}
RETURNING {event}
"""

_CLAIM_COMPETING = """
-- Claim free events beside other relays, and skip those that another relay is claiming.
WITH next AS MATERIALIZED (
  SELECT e.event_id, {size} AS size FROM {table} e
  WHERE e.status = 'PENDING' AND e.created_at >= {low} AND e.available_at <= now()
    AND e.event_type <> ALL(%(types)s::text[])
  ORDER BY e.created_at, e.event_id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), {total}
UPDATE {table} e
SET status = 'DELIVERING', locked_by = %(token)s, locked_at = now(), updated_at = now()
FROM next WHERE e.event_id = next.event_id AND {fits} AND {async_commit}
RETURNING {event}
"""

_CLAIM_READ = """
-- Read the next events of the owned slots, oldest first; ownership alone keeps others away.
WITH next AS MATERIALIZED (
  SELECT {columns}, {size} AS size FROM {table} e
  WHERE {ready}
  ORDER BY e.created_at, e.event_id LIMIT %(limit)s
), {total}
SELECT {event} FROM (SELECT * FROM next WHERE {fits}) e
"""

_CLAIM_IDS = """
-- Claim named events again: heads whose backoff is over, and suspects, which go out one by one.
WITH next AS MATERIALIZED (
  SELECT e.event_id, {size} AS size FROM {table} e
  WHERE e.event_id = ANY(%(ids)s::uuid[]) AND {still_pending}
), {total}
UPDATE {table} e
SET status = 'DELIVERING', locked_by = %(token)s, locked_at = now(), updated_at = now()
FROM next WHERE e.event_id = next.event_id AND {fits} AND {still_pending}
RETURNING {event}
"""

_READ_IDS = """
-- Read named events again: heads whose backoff is over, and suspects, which go out one by one.
WITH next AS MATERIALIZED (
  SELECT {columns}, {size} AS size FROM {table} e
  WHERE e.event_id = ANY(%(ids)s::uuid[]) AND {still_pending}
), {total}
SELECT {event} FROM (SELECT * FROM next WHERE {fits}) e
"""

_NO_FENCE = """fence AS (SELECT true AS holds)"""

_DELIVER = """
-- Settle what the broker acknowledged.
WITH {fence}
UPDATE {table} e
SET status = 'DELIVERED', delivered_at = clock_timestamp(), updated_at = clock_timestamp(),
    locked_by = NULL, locked_at = NULL, last_error = NULL
WHERE e.event_id = ANY(%(ids)s::uuid[]) AND {still_leased} AND (SELECT holds FROM fence)
"""

_DELIVER_ALL = f"{_DELIVER}  AND {{async_commit}}"

_DELIVER_LEASE = """
-- Settle all that one claim brought, through the index on locked_at.
WITH {fence}
UPDATE {table} e
SET status = 'DELIVERED', delivered_at = clock_timestamp(), updated_at = clock_timestamp(),
    locked_by = NULL, locked_at = NULL, last_error = NULL
WHERE e.locked_at = %(leased_at)s AND {leased} AND (SELECT holds FROM fence) AND {async_commit}
"""

_SETTLE = """
-- Settle the rest: back after a wait, back immediately, skipped, or dead.
WITH {fence}
UPDATE {table} e
SET status = CASE o.state WHEN 'done' THEN 'DELIVERED' WHEN 'dead' THEN 'DEAD' ELSE 'PENDING' END,
    attempts = e.attempts + o.counted,
    last_error = coalesce(o.error, e.last_error),
    available_at = CASE WHEN o.wait IS NULL THEN e.available_at
                        ELSE clock_timestamp() + make_interval(secs => o.wait) END,
    delivered_at = CASE WHEN o.state = 'done' THEN clock_timestamp() ELSE e.delivered_at END,
    locked_by = NULL, locked_at = NULL, updated_at = clock_timestamp()
FROM unnest(%(ids)s::uuid[], %(states)s::text[], %(counts)s::int[], %(waits)s::float8[], %(errors)s::text[])
  AS o(id, state, counted, wait, error)
WHERE e.event_id = o.id AND {still_leased} AND (SELECT holds FROM fence)
"""

_LEASED_ROW = """e.status = 'DELIVERING' AND e.locked_by = %(token)s"""
_LEASED_SLOT = """e.status = 'PENDING'"""

_ADOPT = """
-- Give back what the former owner of these slots had in flight; it counts as an attempt.
WITH adopted AS (
UPDATE {table} e
SET status = CASE WHEN e.attempts + 1 >= %(max_attempts)s THEN 'DEAD' ELSE 'PENDING' END,
    attempts = e.attempts + 1, last_error = %(error)s,
    locked_by = NULL, locked_at = NULL, updated_at = clock_timestamp()
WHERE e.status = 'DELIVERING' AND starts_with(e.locked_by, {prefix}) AND {slot} = ANY(%(slots)s::int[])
RETURNING e.event_id, e.partition_key, e.status = 'DEAD' AS dead, e.created_at
)
SELECT event_id::text, partition_key, dead FROM adopted ORDER BY created_at, event_id
"""

_SUSPECTS = """
-- What a crashed owner may have had in flight when a claim writes nothing: the head of each slot.
SELECT e.event_id::text, e.partition_key FROM {table} e
WHERE e.status = 'PENDING' AND e.available_at <= now() AND {slot} = ANY(%(slots)s::int[])
  AND {not_blocked}
ORDER BY e.created_at, e.event_id LIMIT %(limit)s
"""

_COUNT_ATTEMPT = """
-- Count an attempt before a suspect goes out, so that one that kills its lane ends as dead.
WITH {fence}
UPDATE {table} e
SET status = CASE WHEN e.attempts + 1 >= %(max_attempts)s THEN 'DEAD' ELSE e.status END,
    attempts = e.attempts + 1, last_error = %(error)s, updated_at = clock_timestamp()
WHERE e.event_id = ANY(%(ids)s::uuid[]) AND {still_pending} AND (SELECT holds FROM fence)
RETURNING e.event_id::text, e.status = 'DEAD' AS dead
"""

_KEYS_IN_BACKOFF = """
-- Keys whose head waits for its next try; a scheduled event that never failed blocks no key.
SELECT e.event_id::text, e.partition_key, {until_due}
FROM {table} e
WHERE e.status = 'PENDING' AND e.available_at > now() AND e.attempts > 0
  AND e.partition_key IS NOT NULL AND {slot} = ANY(%(slots)s::int[])
"""

_KEYS_BEHIND_DEAD = """
-- Keys that wait behind a dead event.
SELECT DISTINCT e.partition_key FROM {table} e
WHERE e.status = 'DEAD' AND e.partition_key IS NOT NULL AND {slot} = ANY(%(slots)s::int[])
"""

_NEXT_DUE = """
-- How long until the next scheduled event falls due; the heads of keys in backoff are waited for by name.
SELECT """ + seconds_until("""(
  SELECT e.available_at FROM {table} e
  WHERE e.status = 'PENDING' AND e.available_at > now() AND (e.attempts = 0 OR e.partition_key IS NULL)
  ORDER BY e.available_at LIMIT 1)""")


# What was tried before goes out again at its own time, and what stands behind it waits.
_OLDEST = """
-- The due event that is to go out next, of those that nothing holds back
SELECT e.event_id::text, -{until_due}, EXISTS (SELECT 1 FROM {table} f WHERE f.status = 'DELIVERING')
FROM {table} e
WHERE e.status = 'PENDING' AND e.available_at <= now() AND e.attempts = 0 AND {slot} = ANY(%(slots)s::int[])
  AND (e.partition_key IS NULL OR e.partition_key NOT IN (
    SELECT t.partition_key FROM {table} t
    WHERE t.status = 'PENDING' AND t.attempts > 0 AND t.partition_key IS NOT NULL
    UNION ALL SELECT t.partition_key FROM {table} t
    WHERE t.status = 'DELIVERING' AND t.attempts > 0 AND t.partition_key IS NOT NULL
    UNION ALL SELECT t.partition_key FROM {table} t
    WHERE t.status = 'DEAD' AND t.partition_key IS NOT NULL AND %(park)s::bool))
ORDER BY e.created_at, e.event_id LIMIT 1
"""


def relay_statements(table: TableName, settings: SourceSettings, conn: object = None) -> RelayStatements:
    """Compose the statements for one way of working: competing, or owning slots with leases on rows or on slots."""
    owned, marked = settings.ordering == "key", settings.lease == "row"
    fence = sql.SQL(FENCE).format(slots_table=slots_table(table).identifier)
    parts: dict[str, sql.Composable] = {
        "table": table.identifier,
        "columns": sql.SQL(_COLUMNS),
        "size": sql.SQL(_SIZE),
        **bounded(settings.batch_bytes, "event_id"),
        "async_commit": sql.SQL(ASYNC_COMMIT),
        "slot": sql.SQL(_SLOT).format(count=sql.Literal(settings.slots)),
        "fence": fence if owned else sql.SQL(_NO_FENCE),
        "leased": sql.SQL(_LEASED_ROW if marked else _LEASED_SLOT),
        "prefix": sql.Literal(TOKEN_PREFIX),
        "low": sql.SQL(LOW),
        "until_due": sql.SQL(seconds_until("e.available_at")),
    }
    parts["event"] = sql.SQL(_EVENT).format(**parts)
    parts["not_blocked"] = not_blocked(sql.SQL("e.partition_key"))
    parts["ready"] = sql.SQL(_READY).format(**parts)
    parts["still_pending"] = hide_from_planner(sql.SQL("e.status = 'PENDING'"))
    parts["still_leased"] = hide_from_planner(parts["leased"])

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
        oldest=Query(text(_OLDEST), answers.Oldest._make),
        pack=Uuids,
        read=_read,
    )


def _read(rows: Sequence[tuple[Any, ...]]) -> list[Event]:
    """The events of a claim, in their order: RETURNING promises none."""
    events = [
        Event(id, type, key, payload, headers, attempts, created_at, key)
        for id, type, key, payload, headers, attempts, created_at, _, _ in rows
    ]
    events.sort(key=_order)
    return events


def _order(event: Event) -> tuple[datetime, str]:
    return event.created_at, event.id
