"""Operations for a service's own Alembic migrations: each takes Alembic's `op` and the table's name.

A table's name may have a schema before it, `sales.orders_outbox`. Every operation runs in the transaction of the
migration, and fails with psycopg's error where the database refuses it. The `metadata` functions and
`without_partitions` are for autogenerate, so that it finds nothing to change on these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from outspark import contracts
from outspark.config.contracts import DEFAULT
from outspark.contracts.contract import Contract
from outspark.contracts.jeap import table as jeap
from outspark.contracts.openoutbox import table as openoutbox
from outspark.database import doorbell
from outspark.database.names import TableName
from outspark.errors import SettingsError

if TYPE_CHECKING:
    import sqlalchemy

__all__ = [
    "create_omnibox_ready_index",
    "create_ready_index",
    "downgrade",
    "downgrade_jeap",
    "downgrade_omnibox",
    "install_doorbell",
    "metadata",
    "metadata_jeap",
    "remove_doorbell",
    "upgrade",
    "upgrade_jeap",
    "upgrade_omnibox",
    "without_partitions",
]

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


def metadata(metadata: sqlalchemy.MetaData, table: str = "openoutbox_events") -> sqlalchemy.Table:
    """Add an Open Outbox table to a service's metadata, for autogenerate; returns the table."""
    return openoutbox.metadata(TableName.parse(table), metadata)


def install_doorbell(op: Operations, table: str = "public.openoutbox_events", lanes: int = 8) -> None:
    """Create a trigger that wakes idle lanes when events are committed, so that they need not wait for their next poll.

    `table` needs its schema, because the lanes' locks are named after it. `lanes` is how many lanes the relay has.
    """
    _run(op, doorbell.statements(TableName.parse(table), lanes))


def remove_doorbell(op: Operations, table: str = "public.openoutbox_events") -> None:
    """Drop the trigger and its function; lanes then find events by polling."""
    _run(op, doorbell.removal_statements(TableName.parse(table)))


def upgrade_jeap(op: Operations, table: str | None = None) -> None:
    """Create a jEAP outbox with its sequence and indexes, and `shedlock`, each only if it is missing."""
    upgrade(op, table, contract="jeap")


def downgrade_jeap(op: Operations, table: str | None = None) -> None:
    """Drop a jEAP outbox with every message in it, sent or not. `shedlock` stays: other programs may use it."""
    downgrade(op, table, contract="jeap")


def metadata_jeap(
    metadata: sqlalchemy.MetaData, table: str = "deferred_message", *, with_ready_index: bool = False
) -> sqlalchemy.Table:
    """Add a jEAP outbox, its sequence and `shedlock` to a service's metadata, for autogenerate; returns the outbox.

    `with_ready_index` says that the migrations create Outspark's optional index; autogenerate would drop it otherwise.
    """
    return jeap.metadata(TableName.parse(table), metadata, with_ready_index=with_ready_index)


def upgrade_omnibox(
    op: Operations,
    table: str | None = None,
    *,
    inbox: bool = False,
    partitioned: bool = False,
    ready_index: bool = False,
) -> None:
    """Create one of omni-box's tables with its indexes: the outbox, or with `inbox` the inbox.

    `table` is by default the name that omni-box gives it. `partitioned` partitions it by `created_at`; partitions are
    made by `outspark partitions keep`. `ready_index` adds Outspark's optional index.
    """
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
    """For Alembic's `context.configure(include_name=…)`: hides partitions from autogenerate.

    Without it autogenerate finds each partition in the database, misses it in the metadata, and drops it.
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
