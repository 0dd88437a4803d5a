"""ShedLock's lock, which jEAP's own relays respect too: its statements, and a lane's view of one lock.

ShedLock keeps times without a zone, in UTC. A relay that finds `lock_until` in the past may take the lock.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import timedelta

from psycopg import sql

from outspark.database.names import TableName
from outspark.database.session import Connection

log = logging.getLogger(__name__)

RELAY = "outbox-message-relay-tasks"
HOUSEKEEPING = "outbox-message-house-keeping-tasks"
"""The lock names that jEAP's own relay and housekeeping use."""

ACQUIRE = """\
-- Take the lock if it is free or has expired, or extend it if this holder has it
INSERT INTO {shedlock} AS s (name, lock_until, locked_at, locked_by)
VALUES (%(name)s, timezone('utc', CURRENT_TIMESTAMP) + %(at_most)s, timezone('utc', CURRENT_TIMESTAMP), %(holder)s)
ON CONFLICT (name) DO UPDATE
SET lock_until = EXCLUDED.lock_until, locked_by = EXCLUDED.locked_by,
    locked_at = CASE WHEN s.locked_by = EXCLUDED.locked_by AND s.lock_until > EXCLUDED.locked_at
                THEN s.locked_at ELSE EXCLUDED.locked_at END
WHERE s.lock_until <= EXCLUDED.locked_at OR s.locked_by = EXCLUDED.locked_by
RETURNING 1"""

RELEASE = """\
-- Release the lock if this holder still has it
UPDATE {shedlock} SET lock_until = timezone('utc', CURRENT_TIMESTAMP)
WHERE name = %(name)s AND locked_by = %(holder)s AND lock_until > timezone('utc', CURRENT_TIMESTAMP)"""

HOLDER = """\
-- The holder of the lock, and for how many more seconds
SELECT locked_by, extract(epoch FROM lock_until - timezone('utc', CURRENT_TIMESTAMP))::float8
FROM {shedlock} WHERE name = %(name)s AND lock_until > timezone('utc', CURRENT_TIMESTAMP)"""


def compose(template: str, shedlock: TableName) -> str:
    return sql.SQL(template).format(shedlock=shedlock.identifier).as_string(None)


def holder(relay: str, instance: str) -> str:
    """The holder name that all lanes of one run share: they hold the lock together."""
    return f"outspark/{relay}/{instance}"


@dataclass(slots=True)
class ShedLock:
    """One lane's view of one lock. The time that is left is measured on this process's clock from before the query.

    So a difference to the database's clock has no effect, and a slow answer shortens the time, never lengthens it.
    """

    conn: Connection
    table: TableName
    name: str
    holder: str
    at_most: timedelta
    _until: float = 0.0
    _refused: bool = False

    def held_for(self) -> float:
        """Seconds for which the lock is certainly held; 0 or less when it is not."""
        return self._until - time.monotonic()

    def hold(self, seconds: float) -> bool:
        """Make sure that the lock is held for that long. The lock is extended when half of its time has passed."""
        half = self.at_most.total_seconds() / 2
        return self.held_for() > max(seconds, half) or (self.acquire() and self.held_for() > seconds)

    def acquire(self) -> bool:
        """Take or extend the lock; False while another holder has it."""
        asked = time.monotonic()
        parameters = {"name": self.name, "at_most": self.at_most, "holder": self.holder}
        row = self.conn.execute(compose(ACQUIRE, self.table), parameters).fetchone()
        self._until = asked + self.at_most.total_seconds() if row is not None else 0.0
        if (row is None) != self._refused:
            self._refused = row is None
            said = "waiting for it" if self._refused else "acquired"
            log.info("lock of another relay: %s", said, extra={"lock": self.name, "table": str(self.table)})
        return row is not None

    def release(self) -> None:
        """Release the lock for all lanes of this holder, so only when the last of them has ended."""
        self._until = 0.0
        parameters = {"name": self.name, "holder": self.holder}
        self.conn.execute(compose(RELEASE, self.table), parameters)
