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
    contract = contracts.get(settings.contract)
    where, at_most = contract.lock_table(table), contract.lock_at_most(settings)
    if where is None or at_most is None:
        return None
    return ShedLock(conn, where, statements.RELAY, holder(relay, instance), at_most)
