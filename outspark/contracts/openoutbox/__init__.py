"""The `openoutbox` contract: the table of Open Outbox Relay, shared with that relay or taken over from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from outspark.contracts.openoutbox import enqueue, relay, table
from outspark.contracts.openoutbox.maintenance import OpenOutboxMaintenance
from outspark.database import doorbell
from outspark.database.names import TableName


class OpenOutbox:
    """Everything the rest of Outspark knows about this kind of table. Tables are given as `TableName`."""

    name: Final = "openoutbox"
    default_table: Final = str(table.DEFAULT_TABLE)

    ddl = staticmethod(table.ddl)
    statements = staticmethod(table.statements)
    metadata = staticmethod(table.metadata)
    check_table = staticmethod(table.check_table)
    doorbell_ddl = staticmethod(doorbell.doorbell_ddl)
    doorbell_removal_ddl = staticmethod(doorbell.removal_ddl)
    insert_sql = staticmethod(enqueue.insert_sql)
    insert_params = staticmethod(enqueue.insert_params)
    relay_statements = staticmethod(relay.relay_statements)
    maintenance = OpenOutboxMaintenance

    @staticmethod
    def lock_table(table: TableName) -> None:
        return None

    @staticmethod
    def header_table(table: TableName) -> None:
        return None

    @staticmethod
    def side_tables(table: TableName) -> Mapping[str, str]:
        return {}


CONTRACT: Final = OpenOutbox()
