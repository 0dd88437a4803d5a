"""The `openoutbox` contract: the table of Open Outbox Relay, shared with that relay or taken over from it."""

from __future__ import annotations

from typing import Final

from outspark.config.contracts import ContractSettings
from outspark.contracts.contract import Contract
from outspark.contracts.openoutbox import relay, table
from outspark.contracts.openoutbox.maintenance import OpenOutboxMaintenance
from outspark.contracts.writing import OutboxWriter, application_side
from outspark.database.names import TableName


class OpenOutbox(Contract):
    """Everything the rest of Outspark knows about this kind of table. Tables are given as `TableName`."""

    settings = ContractSettings(name="openoutbox", default_table=str(table.DEFAULT_TABLE))

    statements = staticmethod(table.statements)
    drop_statements = staticmethod(table.drop_statements)
    metadata = staticmethod(table.metadata)
    check_table = staticmethod(table.check_table)
    relay_statements = staticmethod(relay.relay_statements)
    maintenance = OpenOutboxMaintenance

    def outbox_writer(self, table: TableName) -> OutboxWriter:
        return application_side("outspark.outbox.plain:OpenOutboxWriter", table)


CONTRACT: Final = OpenOutbox()
