"""The `openoutbox` contract: the table of Open Outbox Relay, shared with that relay or taken over from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from outspark.contracts import doorbell
from outspark.contracts.names import TableName
from outspark.contracts.openoutbox import check, insert, lane, table
from outspark.contracts.openoutbox.upkeep import OpenOutboxUpkeep


class OpenOutbox:
    """Everything the rest of Outspark knows about this kind of table. Tables are given as `TableName`."""

    name: Final = "openoutbox"
    default_table: Final = str(table.DEFAULT_TABLE)

    ddl = staticmethod(table.ddl)
    statements = staticmethod(table.statements)
    metadata = staticmethod(table.metadata)
    check_table = staticmethod(check.check_table)
    doorbell_ddl = staticmethod(doorbell.doorbell_ddl)
    doorbell_removal_ddl = staticmethod(doorbell.removal_ddl)
    insert_sql = staticmethod(insert.insert_sql)
    insert_params = staticmethod(insert.insert_params)
    lane_statements = staticmethod(lane.lane_statements)
    upkeep = OpenOutboxUpkeep

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
