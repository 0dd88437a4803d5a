"""A contract of its own that only its test knows: entries of accounts, in order per account."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

import psycopg
from pydantic import Field

from outspark.config.contracts import ContractSettings
from outspark.config.fields import Model
from outspark.contracts.contract import Contract
from outspark.contracts.relay_statements import RelayStatements
from outspark.database.check import Finding, compare, look_up
from outspark.database.names import TableName, resolve
from tests.integration.contracts.ledger import relay, table
from tests.integration.contracts.ledger.maintenance import LedgerMaintenance
from tests.integration.contracts.ledger.writer import LedgerWriter

if TYPE_CHECKING:
    from outspark.config.settings import SourceSettings


class LedgerSettings(Model):
    """What only a ledger has."""

    book: str = Field("main", description="Which book the entries belong to.")
    ignore: tuple[str, ...] = Field((), description="Columns of the service's own.")


def _check(source: SourceSettings) -> Iterator[str]:
    if source.lease != "slot":
        yield 'contract = "ledger" needs lease = "slot": its table has no leases'


class Ledger(Contract):
    settings = ContractSettings(
        name="ledger",
        default_table="ledger_entries",
        defaults={"lease": "slot"},
        section=LedgerSettings,
        check=_check,
    )

    maintenance = LedgerMaintenance
    outbox_writer = LedgerWriter

    def statements(self, table_name: TableName) -> list[str]:
        return table.SHAPE.statements(table_name)

    def drop_statements(self, table_name: TableName) -> list[str]:
        return [f"DROP TABLE {table_name}"]

    def check_table(
        self, conn: psycopg.Connection[Any], table_name: TableName, ignore: Collection[str] = ()
    ) -> list[Finding]:
        found = look_up(conn, resolve(conn, table_name))
        unknown = found.columns.keys() - {column.name for column in table.SHAPE.columns} - set(ignore)
        own = [Finding("error", f"unknown columns: {', '.join(unknown)}", "ledger.ignore")] if unknown else []
        return [*compare(table_name, table.SHAPE, found), *own]

    def ignored(self, source: SourceSettings) -> Collection[str]:
        own: LedgerSettings = source.own
        return own.ignore

    def relay_statements(
        self, table_name: TableName, settings: SourceSettings, conn: psycopg.Connection[Any] | None = None
    ) -> RelayStatements:
        return relay.relay_statements(table_name, settings)


CONTRACT: Final = Ledger()
