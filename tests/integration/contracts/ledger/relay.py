"""The statements of a lane on a ledger: ownership of slots alone keeps other lanes away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psycopg import sql

from outspark.contracts import relay_statements as answers
from outspark.contracts.relay_statements import Claim, Command, Query, RelayStatements
from outspark.database.arrays import Uuids
from outspark.database.names import TableName
from outspark.database.slots import FENCE, slots_table
from outspark.event import Event

if TYPE_CHECKING:
    from outspark.config.settings import SourceSettings

_READ = """
SELECT e.no::text, e.kind, e.account, e.body, e.notes, e.tries, e.made, NULL::timestamptz, false
FROM {table} e"""

_CLAIM = f"""
-- Read the next entries of the owned slots, oldest first
{_READ}
WHERE e.state = 'open' AND e.due <= now() AND {{slot}} = ANY(%(slots)s::int[])
  AND (e.account IS NULL OR e.account <> ALL(%(blocked)s::text[])) AND e.kind <> ALL(%(types)s::text[])
ORDER BY e.made, e.no LIMIT %(limit)s"""

_CLAIM_IDS = f"""
-- Read named entries again
{_READ}
WHERE e.state = 'open' AND e.no = ANY(%(ids)s::uuid[])"""

_DELIVER = """
-- Settle what the broker acknowledged
WITH {fence}
UPDATE {table} e SET state = 'done', ended = clock_timestamp(), why = NULL
WHERE e.no = ANY(%(ids)s::uuid[]) AND e.state = 'open' AND (SELECT holds FROM fence)"""

_SETTLE = """
-- Settle the rest
WITH {fence}
UPDATE {table} e
SET state = CASE o.state WHEN 'done' THEN 'done' WHEN 'dead' THEN 'dead' ELSE 'open' END,
    ended = CASE WHEN o.state IN ('done', 'dead') THEN clock_timestamp() END,
    tries = e.tries + o.counted, why = coalesce(o.error, e.why),
    due = clock_timestamp() + make_interval(secs => coalesce(o.wait, 0))
FROM unnest(%(ids)s::uuid[], %(states)s::text[], %(counts)s::int[], %(waits)s::float8[], %(errors)s::text[])
  AS o(no, state, counted, wait, error)
WHERE e.no = o.no AND e.state = 'open' AND (SELECT holds FROM fence)"""

_NOTHING = """
-- A claim leaves no mark
SELECT NULL::text, NULL::text, false WHERE false"""

_SUSPECTS = """
-- What a crashed owner may have had in flight
SELECT e.no::text, e.account FROM {table} e
WHERE e.state = 'open' AND e.due <= now() AND {slot} = ANY(%(slots)s::int[])
  AND (e.account IS NULL OR e.account <> ALL(%(blocked)s::text[]))
ORDER BY e.made, e.no LIMIT %(limit)s"""

_COUNT_ATTEMPT = """
-- Count an attempt before a suspect goes out
WITH {fence}
UPDATE {table} e SET tries = e.tries + 1, why = %(error)s,
  state = CASE WHEN e.tries + 1 >= %(max_attempts)s THEN 'dead' ELSE 'open' END
WHERE e.no = ANY(%(ids)s::uuid[]) AND e.state = 'open' AND (SELECT holds FROM fence)
RETURNING e.no::text, e.state = 'dead'"""

_KEYS_IN_BACKOFF = """
-- Accounts whose first entry waits for its next try
SELECT e.no::text, e.account, extract(epoch FROM e.due - clock_timestamp())::float8 FROM {table} e
WHERE e.state = 'open' AND e.due > now() AND e.tries > 0 AND e.account IS NOT NULL
  AND {slot} = ANY(%(slots)s::int[])"""

_KEYS_BEHIND_DEAD = """
-- Accounts that wait behind a dead entry
SELECT DISTINCT e.account FROM {table} e
WHERE e.state = 'dead' AND e.account IS NOT NULL AND {slot} = ANY(%(slots)s::int[])"""

_NEXT_DUE = """
-- How long until the next entry falls due
SELECT extract(epoch FROM min(e.due) - clock_timestamp())::float8 FROM {table} e
WHERE e.state = 'open' AND e.due > now()"""

_OLDEST = """
-- The due entry that goes out next
SELECT e.no::text, extract(epoch FROM clock_timestamp() - e.due)::float8, false FROM {table} e
WHERE e.state = 'open' AND e.due <= now() AND {slot} = ANY(%(slots)s::int[]) AND NOT %(park)s::bool
ORDER BY e.made, e.no LIMIT 1"""


def relay_statements(table: TableName, settings: SourceSettings) -> RelayStatements:
    parts: dict[str, sql.Composable] = {
        "table": table.identifier,
        "slot": sql.SQL(
            "mod(hashtextextended(coalesce(e.account, e.no::text), 0) & 255, {count})::int"
        ).format(count=sql.Literal(settings.slots)),
        "fence": sql.SQL(FENCE).format(slots_table=slots_table(table).identifier),
    }

    def text(template: str) -> str:
        return sql.SQL(template).format(**parts).as_string(None)

    return RelayStatements(
        claim=Claim(text(_CLAIM)),
        claim_ids=Claim(text(_CLAIM_IDS)),
        deliver=Command(text(_DELIVER)),
        deliver_all=Command(text(_DELIVER)),
        settle=Command(text(_SETTLE)),
        adopt=Query(text(_NOTHING), answers.Adopted._make),
        suspects=Query(text(_SUSPECTS), answers.Suspect._make),
        count_attempt=Query(text(_COUNT_ATTEMPT), answers.CountedAttempt._make),
        keys_in_backoff=Query(text(_KEYS_IN_BACKOFF), answers.KeyInBackoff._make),
        keys_behind_dead=Query(text(_KEYS_BEHIND_DEAD), answers.KeyBehindDead._make),
        next_due=Query(text(_NEXT_DUE), answers.NextDue._make),
        oldest=Query(text(_OLDEST), answers.Oldest._make),
        pack=Uuids,
        read=_read,
        low_water=False,
    )


def _read(rows: Sequence[tuple[Any, ...]]) -> list[Event]:
    return [
        Event(no, kind, account, body, notes or None, tries, made, account)
        for no, kind, account, body, notes, tries, made, _, _ in rows
    ]
