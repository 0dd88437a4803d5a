"""The statements of an omni-box inbox: accept, claim, complete, settle, and what keeps the locks of claims honest.

            accept                     claim                    complete
message ───────────────► pending ───────────────► pending, locked ───────────► completed
   │ not fit to be handled  ▲                            │
   └────────► failed        └──settle, adopt, unlock─────┴──settle──► failed

A row is named by `(id, created_at)`, so that only one partition of a partitioned table is read. One that failed has no
attempts left, because omni-box refuses to read a failed row that has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg import sql

from outspark.contracts.contract import ASYNC_COMMIT
from outspark.contracts.omnibox.inbox_guard import beside
from outspark.contracts.omnibox.inbox_ids import AHEAD, ID, START
from outspark.contracts.omnibox.maintenance import UNLOCKED
from outspark.database.names import TableName, resolve
from outspark.database.predicates import hide_from_planner, not_blocked, size
from outspark.database.times import readable, same, seconds_until

KEY_HEADER: Final = "partition_key"
"""The table has no column for the key of a message, so it stands among the headers under this name."""

WORKER_PREFIX: Final = "outspark/inbox/"
"""Every lock of our workers is `outspark/inbox/<instance>/<worker>/<claim>`."""

MOST_BYTES: Final = 16 * 1024 * 1024
"""Of payloads and headers in a claim, unless told otherwise; a single event may be larger."""

# scheduled_at is the order of acceptance, on the database's clock and a microsecond apart, until the event is put off;
# id is so for ever. created_at is the message's own time, which is the same whenever and wherever it comes again.
_INSERT = f"""\
INSERT INTO {{table}}
  (id, event_type, message_id, consumer_group, source, payload, headers, trace_id, idempotency_key,
   correlation_id, causation_id, schema_version, status, attempts_made, max_attempts, last_error,
   scheduled_at, created_at, updated_at)
SELECT {ID}, m.event_type, m.message_id, %(group)s::text, m.source, m.payload::jsonb, m.headers::jsonb,
       m.trace_id, m.idempotency_key, m.correlation_id, m.causation_id, m.schema_version,
       CASE WHEN m.error IS NULL THEN 'pending' ELSE 'failed' END,
       CASE WHEN m.error IS NULL THEN 0 ELSE %(max_attempts)s::int END, %(max_attempts)s::int, m.error,
       start.at + (m.position - 1) * interval '1 microsecond', coalesce(m.created_at, start.at), start.at
FROM start
CROSS JOIN unnest(
  %(event_types)s::text[], %(message_ids)s::text[], %(sources)s::text[], %(payloads)s::text[],
  %(headers)s::text[], %(trace_ids)s::text[], %(idempotency_keys)s::text[], %(correlation_ids)s::text[],
  %(causation_ids)s::text[], %(schema_versions)s::text[], %(errors)s::text[], %(created_ats)s::timestamptz[]
) WITH ORDINALITY AS m(event_type, message_id, source, payload, headers, trace_id, idempotency_key,
                       correlation_id, causation_id, schema_version, error, created_at, position)"""

# Without a conflict target every unique index counts: message and group, idempotency key, and the row's own id.
ACCEPT = f"""
-- Accept messages in the given order; those that the inbox already has are left alone
WITH {START}
{_INSERT}
ON CONFLICT DO NOTHING
RETURNING id::text, message_id"""

# A row that may meet a conflict costs the server a quarter more.
ACCEPT_NEW = f"""
-- Accept messages in the given order, none of which the inbox had a moment ago; a conflict undoes all
WITH {START}, taken AS (
{_INSERT}
)
SELECT ids FROM start"""

KNOWN_MESSAGES = """
-- Which of these messages has the group, whenever they are from?
SELECT DISTINCT message_id FROM {table}
WHERE message_id = ANY(%(message_ids)s::text[]) AND consumer_group = %(group)s"""

KNOWN_KEYS = """
-- Which of these idempotency keys are there, whenever they are from?
SELECT DISTINCT idempotency_key FROM {table} WHERE idempotency_key = ANY(%(idempotency_keys)s::text[])"""

OPEN_MESSAGES = """
-- Which of these messages are not at their end yet?
SELECT message_id FROM {table}
WHERE message_id = ANY(%(message_ids)s::text[]) AND consumer_group = %(group)s
  AND {still_pending}"""

LOCK_ACCEPT = """
-- Keep other consumers from accepting the ids and keys of these buckets, until the end of the transaction
SELECT pg_advisory_xact_lock(%(class)s::int, bucket), current_setting('transaction_isolation')
FROM unnest(%(buckets)s::int[]) AS bucket"""

_EVENT = f"""e.id::text, {readable("e.created_at")} AS created_at, e.event_type, e.message_id, e.consumer_group,
  e.source, e.payload::text, e.headers, e.trace_id, e.idempotency_key, e.correlation_id, e.causation_id,
  e.schema_version, e.attempts_made, e.max_attempts"""

_SIZE = f"""{size("e.payload")} + {size("e.headers")}"""
_KEY = "(e.headers ->> {key})"
_SLOT = "mod(hashtextextended(coalesce({key}, e.id::text), 0) & 255, {count})::int"

# The words of the index on scheduled_at, so that the planner finds it.
_FREE = """
e.status = 'pending' AND e.locked_at IS NULL AND e.attempts_made < e.max_attempts
  AND e.scheduled_at <= now() AND e.consumer_group = %(group)s"""

# The time finds the partition. Where it was read before, it may stand for one that Python cannot hold.
_SAME_TIME = """AND e.created_at = o.created_at"""
_TIME_READ = f"AND {same('e.created_at', 'o.created_at')}"
_THIS = f"e.id = %(id)s::uuid AND {same('e.created_at', '%(created_at)s::timestamptz')}"

_LOCK = """
UPDATE {table} e
SET locked_at = clock_timestamp(), locked_by = %(token)s, updated_at = clock_timestamp()
FROM chosen o WHERE e.id = o.id {same_time} AND {async_commit}
RETURNING {event}, o.position"""

# What was tried before goes alone, so that an event that kills its worker takes no other with it.
CLAIM = """
-- Claim free events, those that were due first; one that was tried before goes alone
WITH next AS MATERIALIZED (
  SELECT s.*, row_number() OVER found AS position, sum(s.size) OVER found - s.size AS bytes_before FROM (
    SELECT e.id, e.created_at, e.attempts_made > 0 AS tried, {size} AS size FROM {table} e
    WHERE {free} {in_order}
    ORDER BY e.scheduled_at, e.id LIMIT %(limit)s FOR UPDATE {passing_over}
  ) s WINDOW found AS (ROWS UNBOUNDED PRECEDING)
), chosen AS MATERIALIZED (
  SELECT n.id, n.created_at, n.position FROM next n
  WHERE n.position = 1 OR (n.bytes_before < {most_bytes} AND {together})
){lock}"""

_UNTRIED = """NOT n.tried AND NOT (SELECT f.tried FROM next f WHERE f.position = 1)"""
_BEFORE_TRIED = """n.position < ALL(SELECT t.position FROM next t WHERE t.tried)"""

CLAIM_HEAD = """
-- Claim the head of a key, for which all later events of the key wait
WITH chosen AS MATERIALIZED (
  SELECT e.id, e.created_at, 1 AS position FROM {table} e
  WHERE {still_free} AND {this}
  FOR UPDATE SKIP LOCKED
){lock}"""

# A key whose event another worker holds waits until that has ended: that worker may have lost its slots and not know it
# yet. Where a statement reads locked rows, the status is hidden from the planner: nearly all rows that have this status
# are not locked.
_IN_ORDER = """
    AND {slot} = ANY(%(slots)s::int[])
    AND {not_blocked}
    AND ({key} IS NULL OR {key} <> ALL(ARRAY(
      SELECT {key} FROM {table} e
      WHERE e.locked_at IS NOT NULL AND {still_pending} AND e.consumer_group = %(group)s AND {key} IS NOT NULL
    )))"""

# Also those that other workers hold: when they come back, their position may be behind later ones of their key. And
# those that were unlocked: the same worker may have held later ones of their key, which count as tried.
HEADS = """
-- Events that failed before or are being handled: each holds up its key; the first of a key last
SELECT h.id::text, {head_created_at}, h.key, {head_until_due}
FROM (
  SELECT e.id, e.created_at, {key} AS key, e.scheduled_at FROM {table} e
  WHERE e.status = 'pending' AND e.locked_at IS NULL AND e.attempts_made < e.max_attempts
    AND (e.attempts_made > 0 OR starts_with(e.last_error, {unlocked}))
    AND e.consumer_group = %(group)s AND {key} IS NOT NULL AND {slot} = ANY(%(slots)s::int[])
  UNION ALL
  SELECT e.id, e.created_at, {key}, e.scheduled_at FROM {table} e
  WHERE e.locked_at IS NOT NULL AND {still_pending}
    AND e.consumer_group = %(group)s AND {key} IS NOT NULL AND {slot} = ANY(%(slots)s::int[])
) h
ORDER BY h.id DESC"""

STILL_WAITS = """
-- Does this event still wait, and how long?
SELECT {until_due} FROM {table} e
WHERE {this} AND {still_pending}"""

_HELD = """e.status = 'pending' AND e.locked_by = %(token)s"""

COMPLETE = """
-- Complete events that are still ours; run in the transaction of their handlers
UPDATE {table} e
SET status = 'completed', completed_at = clock_timestamp(), last_error = o.note,
    locked_at = NULL, locked_by = NULL, updated_at = clock_timestamp()
FROM unnest(%(ids)s::uuid[], %(created_ats)s::timestamptz[], %(notes)s::text[]) AS o(id, created_at, note)
WHERE {named} AND {held}
RETURNING e.id::text"""

# A row's own limit may have been lowered while the worker held it.
_LAST = """(o.state = 'dead' OR e.attempts_made + o.counted >= e.max_attempts)"""

SETTLE = """
-- Settle the events that were not completed: pending after a wait, pending immediately, or failed
UPDATE {table} e
SET status = CASE WHEN {last} THEN 'failed' ELSE 'pending' END,
    attempts_made = CASE WHEN {last} THEN e.max_attempts ELSE e.attempts_made + o.counted END,
    last_error = coalesce(left(o.error, 2000), e.last_error),
    scheduled_at = CASE WHEN o.wait IS NULL THEN e.scheduled_at
                        ELSE clock_timestamp() + make_interval(secs => o.wait) END,
    locked_at = NULL, locked_by = NULL, updated_at = clock_timestamp()
FROM unnest(%(ids)s::uuid[], %(created_ats)s::timestamptz[], %(states)s::text[], %(counts)s::int[],
            %(waits)s::float8[], %(errors)s::text[]) AS o(id, created_at, state, counted, wait, error)
WHERE {named} AND {held}
RETURNING e.id::text, e.status = 'failed'"""

FAIL_COMPLETED = """
-- An event that was completed before its handler ran has failed; it is not tried again
UPDATE {table} e
SET status = 'failed', completed_at = NULL, last_error = left(%(error)s, 2000), updated_at = clock_timestamp(),
    attempts_made = e.max_attempts
WHERE {this} AND e.status = 'completed'
RETURNING e.id::text, true"""

HEARTBEAT = """
-- Say of claimed events that we are still at them
UPDATE {table} e SET locked_at = clock_timestamp()
FROM unnest(%(ids)s::uuid[], %(created_ats)s::timestamptz[]) AS o(id, created_at)
WHERE {named} AND {held}
RETURNING e.id::text"""

ALIVE = """
-- Show that this worker lives for as long as its session does
SELECT pg_try_advisory_lock(%(class)s::int, %(instance)s::int)"""

# The instance is the third part of the token. Rows that another session has locked are being completed now.
ADOPT = """
-- Give back immediately what workers had claimed whose sessions have ended; it counts as an attempt
WITH alive AS MATERIALIZED (
  SELECT l.objid::text AS instance FROM pg_catalog.pg_locks l
  WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
    AND l.classid = (%(class)s::bigint & 4294967295)::oid
    AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
), lost AS MATERIALIZED (
  SELECT e.id, e.created_at FROM {table} e
  WHERE e.locked_at IS NOT NULL AND {still_pending} AND e.consumer_group = %(group)s
    AND starts_with(e.locked_by, {prefix})
    AND split_part(e.locked_by, '/', 3) NOT IN (SELECT instance FROM alive)
  ORDER BY e.locked_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
{give_back}"""

RELEASE_STALE = """
-- Give back locks that ran out; it counts as an attempt, and the last one fails the event for good
WITH lost AS MATERIALIZED (
  SELECT e.id, e.created_at FROM {table} e
  WHERE e.locked_at < now() - %(lease)s::interval AND {still_pending}
    AND (%(group)s::text IS NULL OR e.consumer_group = %(group)s::text)
  ORDER BY e.locked_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
{give_back}"""

_GIVE_BACK = """
UPDATE {table} e
SET status = CASE WHEN e.attempts_made + 1 >= e.max_attempts THEN 'failed' ELSE 'pending' END,
    attempts_made = least(e.attempts_made + 1, e.max_attempts),
    last_error = left({error}, 2000),
    locked_at = NULL, locked_by = NULL, updated_at = clock_timestamp()
FROM lost WHERE e.id = lost.id AND e.created_at = lost.created_at
RETURNING {event}, e.status = 'failed'"""

NEXT_DUE = """
-- How long until the next event falls due
SELECT """ + seconds_until("""(
  SELECT e.scheduled_at FROM {table} e
  WHERE e.status = 'pending' AND e.locked_at IS NULL AND e.attempts_made < e.max_attempts
    AND e.scheduled_at > now() AND e.consumer_group = %(group)s
  ORDER BY e.scheduled_at LIMIT 1)""")

PARTITIONED = """
-- Is this table split into partitions?
SELECT relkind = 'p' FROM pg_catalog.pg_class WHERE oid = to_regclass(%(name)s)"""


@dataclass(slots=True)
class Row:
    """One claimed event as the table has it; `payload` is JSON text."""

    id: str
    created_at: datetime
    event_type: str
    message_id: str
    consumer_group: str
    source: str
    payload: str
    headers: Any
    trace_id: str | None
    idempotency_key: str | None
    correlation_id: str | None
    causation_id: str | None
    schema_version: str | None
    attempts_made: int
    max_attempts: int


@dataclass(frozen=True, slots=True)
class AcceptStatements:
    accept: str
    accept_new: str
    """Answers how the ids begin."""
    ahead: str
    known_messages: str
    known_keys: str
    open_messages: str


@dataclass(frozen=True, slots=True)
class WorkStatements:
    """The statements of a worker, as text for psycopg with named parameters."""

    claim: str
    claim_beside: str
    """The same while some types are paused."""
    claim_head: str
    heads: str
    still_waits: str
    complete: str
    settle: str
    fail_completed: str
    heartbeat: str
    adopt: str
    release_stale: str
    next_due: str


def resolve_inbox(conn: psycopg.Connection[Any], table: TableName) -> TableName:
    """The table with its schema. TableInvalid with the command that makes an inbox when it is not there."""
    return resolve(conn, table, "outspark init --contract omnibox --inbox")


def accept_statements(table: TableName) -> AcceptStatements:
    def text(template: str) -> str:
        parts = {"table": table.identifier, "still_pending": hide_from_planner(sql.SQL("status = 'pending'"))}
        return sql.SQL(template).format(**parts).as_string(None).strip()

    templates = (ACCEPT, ACCEPT_NEW, AHEAD, KNOWN_MESSAGES, KNOWN_KEYS, OPEN_MESSAGES)
    return AcceptStatements(*map(text, templates))


def work_statements(
    table: TableName, slots: int | None = None, *, partitioned: bool = True, most_bytes: int = MOST_BYTES
) -> WorkStatements:
    """Compose them; with `slots` events of one key are claimed in order, and keys split into that many shares.

    They are right for every table. For one without partitions `partitioned = False` keeps the planner from looking rows
    up by their time, which many may share. A claim ends after `most_bytes`.
    """
    key = sql.SQL(_KEY).format(key=sql.Literal(KEY_HEADER))
    parts: dict[str, sql.Composable] = {
        "table": table.identifier,
        "event": sql.SQL(_EVENT),
        "size": sql.SQL(_SIZE),
        "most_bytes": sql.Literal(most_bytes),
        "free": sql.SQL(_FREE),
        "key": key,
        "not_blocked": not_blocked(key),
        "async_commit": sql.SQL(ASYNC_COMMIT),
        "slot": sql.SQL(_SLOT).format(key=key, count=sql.Literal(slots or 1)),
        "held": hide_from_planner(sql.SQL(_HELD)),
        "still_free": hide_from_planner(sql.SQL(_FREE)),
        "still_pending": hide_from_planner(sql.SQL("e.status = 'pending'")),
        "last": sql.SQL(_LAST),
        "prefix": sql.Literal(WORKER_PREFIX),
        "unlocked": sql.Literal(UNLOCKED),
    }
    parts["same_time"] = sql.SQL(_SAME_TIME if partitioned else "")
    parts["named"] = sql.SQL(f"e.id = o.id {_TIME_READ if partitioned else ''}")
    parts["this"] = sql.SQL(_THIS)
    parts["head_created_at"] = sql.SQL(readable("h.created_at"))
    parts["head_until_due"] = sql.SQL(seconds_until("h.scheduled_at"))
    parts["until_due"] = sql.SQL(seconds_until("e.scheduled_at"))
    parts["lock"] = sql.SQL(_LOCK).format(**parts)
    parts["together"] = sql.SQL(_UNTRIED if slots is None else _BEFORE_TRIED)
    # The owner of a key waits for the lock of a row: passing over the first would let the second overtake it.
    parts["passing_over"] = sql.SQL("SKIP LOCKED" if slots is None else "")
    parts["in_order"] = sql.SQL("" if slots is None else _IN_ORDER).format(**parts)
    parts["beside"] = beside(None if slots is None else key)

    def text(template: str, error: str = "") -> str:
        give_back = sql.SQL(_GIVE_BACK).format(error=sql.SQL(error), **parts) if error else sql.SQL("")
        return sql.SQL(template).format(give_back=give_back, **parts).as_string(None).strip()

    return WorkStatements(
        claim=text(CLAIM),
        claim_beside=text(CLAIM.replace("{in_order}", "{in_order} {beside}")),
        claim_head=text(CLAIM_HEAD),
        heads=text(HEADS),
        still_waits=text(STILL_WAITS),
        complete=text(COMPLETE),
        settle=text(SETTLE),
        fail_completed=text(FAIL_COMPLETED),
        heartbeat=text(HEARTBEAT),
        adopt=text(ADOPT, "format('worker %%s vanished', e.locked_by)"),
        release_stale=text(RELEASE_STALE, "format('lock of %%s ran out', e.locked_by)"),
        next_due=text(NEXT_DUE),
    )


def read_claim(rows: Sequence[tuple[Any, ...]]) -> list[Row]:
    """The events of a claim, in its order: an UPDATE answers in any."""
    return [Row(*row[:-1]) for row in sorted(rows, key=lambda row: int(row[-1]))]
