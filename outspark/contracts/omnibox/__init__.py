"""The `omnibox` contract: outbox and inbox of omni-box, shared with its own relay or taken over from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import psycopg

from outspark.contracts.omnibox import relay
from outspark.contracts.omnibox import table as tables
from outspark.contracts.omnibox.maintenance import OmniboxMaintenance
from outspark.database.check import Finding
from outspark.database.names import TableName

if TYPE_CHECKING:
    import sqlalchemy


@dataclass(frozen=True, slots=True)
class Omnibox:
    """Everything the rest of Outspark knows about this kind of table. Tables are given as `TableName`.

    `inbox` and `partitioned` say which of the four tables is to be made or checked. Lanes and maintenance are for
    outboxes, and find out by themselves whether those are partitioned.
    """

    inbox: bool = False
    partitioned: bool = False
    name: ClassVar[str] = "omnibox"

    relay_statements = staticmethod(relay.relay_statements)
    ready_index = staticmethod(tables.ready_index)
    maintenance = OmniboxMaintenance

    @property
    def default_table(self) -> str:
        return str(self._kind.default_table)

    def ddl(self, table: TableName) -> str:
        return self._kind.ddl(table)

    def statements(self, table: TableName) -> list[str]:
        return self._kind.statements(table)

    def metadata(self, table: TableName | None = None) -> sqlalchemy.Table:
        return self._kind.metadata(table)

    def check_table(
        self, conn: psycopg.Connection[Any], table: TableName, ignore: Collection[str] = ()
    ) -> list[Finding]:
        return tables.check_table(conn, table, inbox=self.inbox)

    def lock_table(self, table: TableName) -> None:
        return None

    def header_table(self, table: TableName) -> None:
        return None

    def side_tables(self, table: TableName) -> Mapping[str, str]:
        return {}

    @property
    def _kind(self) -> tables.Kind:
        return tables.kind(inbox=self.inbox, partitioned=self.partitioned)


CONTRACT: Final = Omnibox()
