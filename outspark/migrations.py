"""Operations for a service's own Alembic migrations: each takes Alembic's `op` and the table's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from outspark import contracts
from outspark.config.contracts import DEFAULT
from outspark.contracts.contract import Contract
from outspark.database import doorbell
from outspark.database.names import TableName
from outspark.errors import SettingsError

if TYPE_CHECKING:
    import sqlalchemy

PARTITIONS = """\
-- Every partition in this database, with its schema unless that is the default one
SELECT nullif(n.nspname, current_schema()), c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relispartition AND c.relkind IN ('r', 'p')"""


class Operations(Protocol):
    """The part of `alembic.op` that is used here."""

    def execute(self, sqltext: str) -> Any: ...


def upgrade(
    op: Operations,
    table: str | None = None,
    *,
    contract: str = DEFAULT,
    inbox: bool = False,
    partitioned: bool = False,
    ready_index: bool = False,
) -> None:
    """Create a table of a contract with its indexes, and Outspark's own optional index if it is wanted."""
    kind, name = _kind(table, contract, inbox, partitioned)
    _run(op, kind.statements(name))
    if ready_index:
        _create_ready_index(op, kind, name)


def downgrade(
    op: Operations,
    table: str | None = None,
    *,
    contract: str = DEFAULT,
    inbox: bool = False,
    partitioned: bool = False,
) -> None:
    """Drop a table of a contract with every event in it, delivered or not. What other tables may use stays."""
    kind, name = _kind(table, contract, inbox, partitioned)
    _run(op, kind.drop_statements(name))


def create_ready_index(op: Operations, table: str | None = None, *, contract: str = "jeap") -> None:
    """Create Outspark's optional index, by default on a jEAP outbox."""
    _create_ready_index(op, *_kind(table, contract))


def install_doorbell(op: Operations, table: str = "public.openoutbox_events", lanes: int = 8) -> None:
    _run(op, doorbell.statements(TableName.parse(table), lanes))


def remove_doorbell(op: Operations, table: str = "public.openoutbox_events") -> None:
    _run(op, doorbell.removal_statements(TableName.parse(table)))


def upgrade_jeap(op: Operations, table: str | None = None) -> None:
    """Create a jEAP outbox with its sequence and indexes, and `shedlock` if it is not there."""
    upgrade(op, table, contract="jeap")


def downgrade_jeap(op: Operations, table: str | None = None) -> None:
    """Drop a jEAP outbox with every message in it, sent or not. `shedlock` stays: others may use it."""
    downgrade(op, table, contract="jeap")


def upgrade_omnibox(
    op: Operations,
    table: str | None = None,
    *,
    inbox: bool = False,
    partitioned: bool = False,
    ready_index: bool = False,
) -> None:
    """Create one of omni-box's tables with its indexes, and Outspark's own optional index if it is wanted."""
    upgrade(op, table, contract="omnibox", inbox=inbox, partitioned=partitioned, ready_index=ready_index)


def downgrade_omnibox(
    op: Operations, table: str | None = None, *, inbox: bool = False, partitioned: bool = False
) -> None:
    """Drop one of omni-box's tables, with its partitions and every event in it."""
    downgrade(op, table, contract="omnibox", inbox=inbox, partitioned=partitioned)


def create_omnibox_ready_index(op: Operations, table: str | None = None) -> None:
    """Create Outspark's optional index on one of omni-box's tables."""
    create_ready_index(op, table, contract="omnibox")


IncludeName = Callable[[str | None, str, Mapping[str, str | None]], bool]


def without_partitions(connection: sqlalchemy.Connection) -> IncludeName:
    """For Alembic's `context.configure(include_name=…)`: partitions are no tables of their own to autogenerate.

    Alembic would find each of them in the database, miss it in the metadata, and drop it.
    """

    # Not before it is asked: a statement begins a transaction, and Alembic commits only those that it began itself.
    @cache
    def partitions() -> set[tuple[str | None, str]]:
        import sqlalchemy as sa

        return {(schema, name) for schema, name in connection.execute(sa.text(PARTITIONS))}

    def include_name(name: str | None, type_: str, parents: Mapping[str, str | None]) -> bool:
        return type_ != "table" or (parents.get("schema_name"), name) not in partitions()

    return include_name


def _kind(
    table: str | None, contract: str, inbox: bool = False, partitioned: bool = False
) -> tuple[Contract, TableName]:
    kind = contracts.get(contract).variant(inbox=inbox, partitioned=partitioned)
    return kind, TableName.parse(table or kind.default_table)


def _create_ready_index(op: Operations, contract: Contract, table: TableName) -> None:
    statement = contract.ready_index(table)
    if statement is None:
        raise SettingsError(f"contract {contract.name} has no optional index")
    _run(op, [statement])


def _run(op: Operations, statements: Iterable[str]) -> None:
    # One by one: some drivers refuse several statements in one call.
    for statement in statements:
        op.execute(statement)
