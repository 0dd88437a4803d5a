"""The statements of ShedLock's protocol on its table: one holder per name, until a time on the database's clock.

ShedLock keeps times without a zone, in UTC. Whoever finds `lock_until` in the past may take the lock.
"""

from __future__ import annotations

from psycopg import sql

from outspark.contracts.names import TableName

RELAY = "outbox-message-relay-tasks"
HOUSEKEEPING = "outbox-message-house-keeping-tasks"
"""The names under which jEAP's own relay and housekeeping run."""

ACQUIRE = """\
-- Take the lock if it is free or has run out, or hold it longer if it is ours
INSERT INTO {shedlock} AS s (name, lock_until, locked_at, locked_by)
VALUES (%(name)s, timezone('utc', CURRENT_TIMESTAMP) + %(at_most)s, timezone('utc', CURRENT_TIMESTAMP), %(holder)s)
ON CONFLICT (name) DO UPDATE
SET lock_until = EXCLUDED.lock_until, locked_by = EXCLUDED.locked_by,
    locked_at = CASE WHEN s.locked_by = EXCLUDED.locked_by AND s.lock_until > EXCLUDED.locked_at
                THEN s.locked_at ELSE EXCLUDED.locked_at END
WHERE s.lock_until <= EXCLUDED.locked_at OR s.locked_by = EXCLUDED.locked_by
RETURNING 1"""

RELEASE = """\
-- Let go of the lock if it is still ours
UPDATE {shedlock} SET lock_until = timezone('utc', CURRENT_TIMESTAMP)
WHERE name = %(name)s AND locked_by = %(holder)s AND lock_until > timezone('utc', CURRENT_TIMESTAMP)"""

HOLDER = """\
-- Who holds the lock, and for how many seconds more
SELECT locked_by, extract(epoch FROM lock_until - timezone('utc', CURRENT_TIMESTAMP))::float8
FROM {shedlock} WHERE name = %(name)s AND lock_until > timezone('utc', CURRENT_TIMESTAMP)"""


def compose(template: str, shedlock: TableName) -> str:
    return sql.SQL(template).format(shedlock=shedlock.identifier).as_string(None)
