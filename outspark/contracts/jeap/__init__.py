"""The `jeap` contract: the outbox of jEAP services, relayed instead of or in turn with their own relay."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from outspark.contracts.contract import Contract, Housekeeping
from outspark.contracts.jeap import relay, table
from outspark.contracts.jeap.maintenance import JeapMaintenance
from outspark.contracts.jeap.settings import SETTINGS, own
from outspark.contracts.writing import OutboxWriter, application_side
from outspark.database import side_tables
from outspark.database.names import TableName

if TYPE_CHECKING:
    from outspark.config.settings import SourceSettings


class Jeap(Contract):
    """Everything the rest of Outspark knows about this kind of table. Tables are given as `TableName`."""

    settings = SETTINGS
    # A service notes in its own row what it has sent by itself.
    writer_privileges = ("SELECT", "INSERT", "UPDATE")
    shows_backoff = False

    statements = staticmethod(table.statements)
    drop_statements = staticmethod(table.drop_statements)
    ready_index = staticmethod(table.ready_index)
    metadata = staticmethod(table.metadata)
    check_table = staticmethod(table.check_table)
    relay_statements = staticmethod(relay.relay_statements)
    lock_table = staticmethod(table.shedlock)
    header_table = staticmethod(table.header_table)
    maintenance = JeapMaintenance

    def sequences(self, outbox: TableName) -> list[TableName]:
        return [table.sequence(outbox)]

    def ignored(self, source: SourceSettings) -> Collection[str]:
        return own(source).ignore

    def outbox_writer(self, table: TableName) -> OutboxWriter:
        return application_side("outspark.outbox.jeap.plain:JeapWriter", table)

    def lock_at_most(self, source: SourceSettings) -> timedelta:
        return own(source).lock_at_most

    def housekeeping(self, source: SourceSettings) -> Housekeeping | None:
        jeap = own(source)
        if jeap.housekeeping == "off":
            return None
        return Housekeeping(
            jeap.housekeeping, jeap.sent_retention, jeap.unsent_retention, jeap.page_size, jeap.max_pages
        )

    def side_tables(self, table: TableName) -> Mapping[str, str]:
        attempts = side_tables.attempts_table(table)
        return {str(attempts): side_tables.compose(side_tables.CREATE_ATTEMPTS, table)}


CONTRACT: Final = Jeap()
