"""Wires a loop together: everything that one source on one lane needs."""

from __future__ import annotations

from outspark import contracts
from outspark.config.settings import SourceSettings
from outspark.database import shedlock as statements
from outspark.database.names import TableName
from outspark.database.session import Connection
from outspark.database.shedlock import ShedLock, holder


def relay_lock(
    conn: Connection, table: TableName, settings: SourceSettings, relay: str, instance: str
) -> ShedLock | None:
    """The lock that all lanes of a run hold while they relay from this table; None where its contract has none."""
    where = contracts.get(settings.contract).lock_table(table)
    if where is None:
        return None
    return ShedLock(conn, where, statements.RELAY, holder(relay, instance), settings.jeap.lock_at_most)
