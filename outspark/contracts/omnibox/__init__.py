"""The `omnibox` contract: outbox and inbox of omni-box, shared with its own relay or taken over from it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import psycopg

from outspark.config.contracts import ContractSettings
from outspark.contracts.contract import Contract
from outspark.contracts.omnibox import relay
from outspark.contracts.omnibox import table as tables
from outspark.contracts.omnibox.maintenance import PARTITIONS, OmniboxMaintenance
from outspark.contracts.writing import OutboxWriter, application_side
from outspark.database.check import Finding
from outspark.database.names import TableName
from outspark.database.partitions import PartitionSql

if TYPE_CHECKING:
    import sqlalchemy


@dataclass(frozen=True, slots=True)
class Omnibox(Contract):
    """Everything the rest of Outspark knows about this kind of table. Tables are given as `TableName`.

    `inbox` and `partitioned` say which of the four tables is to be made or checked. Lanes and maintenance are for
    outboxes, and find out by themselves whether those are partitioned.
    """

    inbox: bool = False
    partitioned: bool = False
    settings: ClassVar[ContractSettings] = ContractSettings(
        name="omnibox",
        default_table=str(tables.kind().default_table),
        partitions=True,
        inboxes=True,
    )

    relay_statements = staticmethod(relay.relay_statements)
    ready_index = staticmethod(tables.ready_index)
    maintenance = OmniboxMaintenance

    @property
    def default_table(self) -> str:
        return str(self._kind.default_table)

    def variant(self, *, inbox: bool = False, partitioned: bool = False) -> Omnibox:
        return Omnibox(inbox, partitioned)

    def statements(self, table: TableName) -> list[str]:
        return self._kind.statements(table)

    def drop_statements(self, table: TableName) -> list[str]:
        return self._kind.drop_statements(table)

    def metadata(self, table: TableName | None = None) -> sqlalchemy.Table:
        return self._kind.metadata(table)

    def check_table(
        self, conn: psycopg.Connection[Any], table: TableName, ignore: Collection[str] = ()
    ) -> list[Finding]:
        return tables.check_table(conn, table, inbox=self.inbox)

    def outbox_writer(self, table: TableName) -> OutboxWriter:
        return application_side("outspark.outbox.omnibox.plain:OmniboxWriter", table)

    def partition_sql(self) -> PartitionSql:
        return PARTITIONS

    @property
    def _kind(self) -> tables.Kind:
        return tables.kind(inbox=self.inbox, partitioned=self.partitioned)


CONTRACT: Final = Omnibox()
