"""The `jeap` contract: the outbox of jEAP services, relayed instead of or in turn with their own relay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from outspark.contracts.jeap import relay, table
from outspark.contracts.jeap.maintenance import JeapMaintenance
from outspark.database import attempts
from outspark.database.names import TableName


class Jeap:
    """Everything the rest of Outspark knows about this kind of table. Tables are given as `TableName`."""

    name: Final = "jeap"
    default_table: Final = str(table.DEFAULT_TABLE)

    ddl = staticmethod(table.ddl)
    statements = staticmethod(table.statements)
    metadata = staticmethod(table.metadata)
    check_table = staticmethod(table.check_table)
    relay_statements = staticmethod(relay.relay_statements)
    lock_table = staticmethod(table.shedlock)
    header_table = staticmethod(table.header_table)
    maintenance = JeapMaintenance

    @staticmethod
    def side_tables(table: TableName) -> Mapping[str, str]:
        return {str(attempts.attempts_table(table)): attempts.compose(attempts.CREATE, table)}


CONTRACT: Final = Jeap()
