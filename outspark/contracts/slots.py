"""`outspark_slots`, the small table of ours that says who owns which slot, and its statements."""

from __future__ import annotations

from psycopg import sql

from outspark.contracts.names import TableName

SLOTS_TABLE = "outspark_slots"

CREATE = """\
-- Who owns which slot of which outbox, or since when nobody does. `epoch` rises with every owner and fences the ones
-- before it; `note` is for the next one.
CREATE TABLE IF NOT EXISTS {slots_table} (
    source text NOT NULL,
    slot integer NOT NULL,
    epoch bigint NOT NULL,
    owner text NOT NULL,
    since timestamptz NOT NULL,
    clean boolean NOT NULL,
    note text,
    PRIMARY KEY (source, slot)
) WITH (fillfactor = 50)"""

EXISTS = """\
-- Is the table there already?
SELECT to_regclass(%(name)s) IS NOT NULL"""

TRY_LOCKS = """\
-- Try to become the owner of each slot; a lock ends with its session, so a dead owner is found at once.
SELECT slot, pg_try_advisory_lock(%(class)s::int, slot) FROM unnest(%(slots)s::int[]) AS slot"""

TAKE = """\
-- Bump the epochs of slots whose locks we hold, and say who had them before, if that ended well, and what was noted.
-- Where it did not, the name of the one who vanished stays until we begin: whoever comes after us must know it, too.
WITH before AS (
  SELECT slot, owner, clean, note, since FROM {slots_table} WHERE source = %(source)s AND slot = ANY(%(slots)s::int[])
), taken AS (
  INSERT INTO {slots_table} AS s (source, slot, epoch, owner, since, clean)
  SELECT %(source)s, slot, 1, %(owner)s, clock_timestamp(), false FROM unnest(%(slots)s::int[]) AS slot
  ON CONFLICT (source, slot) DO UPDATE
  SET epoch = s.epoch + 1, since = EXCLUDED.since, clean = false, note = NULL,
      owner = CASE WHEN s.clean THEN EXCLUDED.owner ELSE s.owner END
  RETURNING slot, epoch
)
SELECT t.slot, t.epoch, b.owner, coalesce(b.clean, true), b.note,
  extract(epoch FROM clock_timestamp() - b.since)::float8
FROM taken t LEFT JOIN before b USING (slot) ORDER BY t.slot"""

OWNERS = """\
-- Who had which slot last, and did that end well?
SELECT owner, clean FROM {slots_table} WHERE source = %(source)s ORDER BY slot"""

ONE_AT_A_TIME = """\
-- Until the end of this transaction
SELECT pg_advisory_xact_lock(%(class)s::int, 0)"""

SPLIT_ANEW = """\
-- Write down all slots of another layout of the keys. What was in flight in one of the old may lie in any of the new,
-- so all are in disorder if one was. Epochs go on from the highest, and those that are no longer used are done with.
WITH old AS (
  SELECT max(epoch) + 1 AS epoch, max(slot) AS last FROM {slots_table} WHERE source = %(source)s
)
INSERT INTO {slots_table} AS s (source, slot, epoch, owner, since, clean)
SELECT %(source)s, slot, old.epoch, %(owner)s, clock_timestamp(), %(clean)s OR slot >= %(count)s
FROM old, generate_series(0, greatest(%(count)s - 1, old.last)) AS slot
ON CONFLICT (source, slot) DO UPDATE
SET epoch = EXCLUDED.epoch, owner = EXCLUDED.owner, since = EXCLUDED.since, clean = EXCLUDED.clean, note = NULL"""

BEGIN = """\
-- Put our name to slots whose last owner cannot be publishing any more.
UPDATE {slots_table} SET owner = %(owner)s WHERE source = %(source)s AND slot = ANY(%(slots)s::int[])"""

LEAVE = """\
-- Mark the slots as left in good order, if they are still ours, with a note on the first of them.
UPDATE {slots_table} s
SET clean = true, since = clock_timestamp(), note = CASE WHEN s.slot = (%(slots)s::int[])[1] THEN %(note)s END
FROM unnest(%(slots)s::int[], %(epochs)s::bigint[]) AS mine(slot, epoch)
WHERE s.source = %(source)s AND s.slot = mine.slot AND s.epoch = mine.epoch"""

PROVE = """\
-- Are all these slots still ours?
SELECT count(*) = cardinality(%(slots)s::int[])
FROM {slots_table} s JOIN unnest(%(slots)s::int[], %(epochs)s::bigint[]) AS mine(slot, epoch) USING (slot, epoch)
WHERE s.source = %(source)s"""

FENCE = """
fence AS MATERIALIZED (
  SELECT count(*) = cardinality(%(slots)s::int[]) AS holds FROM (
    SELECT 1 FROM {slots_table} s
    JOIN unnest(%(slots)s::int[], %(epochs)s::bigint[]) AS mine(slot, epoch) USING (slot, epoch)
    WHERE s.source = %(source)s FOR SHARE OF s
  ) held
)"""
"""Part of a settle: `(SELECT holds FROM fence)` is true while every slot has the epoch under which we own it."""

OWNED = """\
-- How many slots one run of a relay owns now, by its instance
SELECT count(*) FROM {slots_table}
WHERE source = %(source)s AND NOT clean AND strpos(owner, %(instance)s) > 0"""

HELD = """\
-- Which slots of this outbox somebody holds, here or elsewhere, and in which session
SELECT objid::int, pid FROM pg_catalog.pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = (%(class)s::bigint & 4294967295)::oid
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""

OURS = """\
-- Which slots one run of a relay had last, by its instance, and whether it has left them. Those of a vanished owner
-- that it waits for are not among them.
SELECT slot, clean FROM {slots_table} WHERE source = %(source)s AND strpos(owner, %(instance)s) > 0"""

LAYOUT = """\
-- Announce into how many slots we split the keys, and look for a relay that splits them otherwise.
SELECT pg_advisory_lock_shared(%(class)s::int, %(count)s::int),
       (SELECT min(objid::int) FROM pg_locks
        WHERE locktype = 'advisory' AND granted AND classid = (%(class)s::bigint & 4294967295)::oid
          AND objsubid = 2 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND objid <> %(count)s::bigint::oid)"""


def slots_table(outbox: TableName) -> TableName:
    """It lives beside the outbox, in the same schema."""
    return TableName(SLOTS_TABLE, outbox.schema)


def compose(template: str, outbox: TableName) -> str:
    return sql.SQL(template).format(slots_table=slots_table(outbox).identifier).as_string(None)
