"""A lock that relays of other makes respect, too: held in ShedLock's table, extended while we work."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import timedelta

from outspark import contracts
from outspark.contracts import shedlock as statements
from outspark.contracts.names import TableName
from outspark.relay.connection import Connection
from outspark.settings import SourceSettings

log = logging.getLogger(__name__)


def holder(relay: str, instance: str) -> str:
    """All lanes of one run of a relay hold the lock together."""
    return f"outspark/{relay}/{instance}"


@dataclass(slots=True)
class ShedLock:
    """One lane's view of one lock. How long it holds is counted from before the database was asked, on our own clock.

    So a clock that differs from the database's has no effect, and a slow answer makes it shorter, never longer.
    """

    conn: Connection
    table: TableName
    name: str
    holder: str
    at_most: timedelta
    _until: float = 0.0
    _refused: bool = False

    def held_for(self) -> float:
        """Seconds for which it is certainly ours; not more than 0 when it is not."""
        return self._until - time.monotonic()

    def hold(self, seconds: float) -> bool:
        """Make sure that it is ours for that long. It is extended when half of its time has gone."""
        half = self.at_most.total_seconds() / 2
        return self.held_for() > max(seconds, half) or (self.acquire() and self.held_for() > seconds)

    def acquire(self) -> bool:
        """Take it, or extend it; False while it is somebody else's."""
        asked = time.monotonic()
        parameters = {"name": self.name, "at_most": self.at_most, "holder": self.holder}
        row = self.conn.execute(statements.compose(statements.ACQUIRE, self.table), parameters).fetchone()
        self._until = asked + self.at_most.total_seconds() if row is not None else 0.0
        if (row is None) != self._refused:
            self._refused = row is None
            said = "waiting for it" if self._refused else "got it"
            log.info("lock of another relay: %s", said, extra={"lock": self.name, "table": str(self.table)})
        return row is not None

    def release(self) -> None:
        """For all who hold it under this name, so only when the last of them has ended."""
        self._until = 0.0
        parameters = {"name": self.name, "holder": self.holder}
        self.conn.execute(statements.compose(statements.RELEASE, self.table), parameters)


def relay_lock(
    conn: Connection, table: TableName, settings: SourceSettings, relay: str, instance: str
) -> ShedLock | None:
    """The lock that all lanes of a run hold while they relay from this table; None where its contract has none."""
    where = contracts.get(settings.contract).lock_table(table)
    if where is None:
        return None
    return ShedLock(conn, where, statements.RELAY, holder(relay, instance), settings.jeap.lock_at_most)
