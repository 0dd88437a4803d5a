"""The Open Outbox table, written down once: its DDL as SQL and as SQLAlchemy metadata, its parts for `check`.

Names, types, defaults, the CHECK and the indexes are those of Open Outbox, so that its relay works on it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from outspark.contracts.names import TableName
from outspark.contracts.shape import Column, Index, Shape, script

if TYPE_CHECKING:
    import sqlalchemy

DEFAULT_TABLE = TableName("openoutbox_events")
STATUS_CHECK = "check_valid_status"
STATUS_CONDITION = "status IN ('PENDING', 'DELIVERING', 'DELIVERED', 'DEAD')"

DROP_TABLE = "DROP TABLE {table}"


def _name_index(table: TableName, index: Index) -> str:
    """The contract's own name for the default table; `<table>_<purpose>_idx` for any other.

    With a prefix (`idx_<table>_<purpose>`) a table called `openoutbox` would clash with the default.
    """
    if table.table == DEFAULT_TABLE.table:
        return f"idx_openoutbox_{index.purpose}"
    return table.sibling(f"{index.purpose}_idx").table


def _index(purpose: str, columns: tuple[str, ...], status: str, include: tuple[str, ...] = ()) -> Index:
    return Index(purpose, columns, f"status = '{status}'", f"(status = '{status}'::text)", include)


SHAPE = Shape(
    purpose="The outbox: one row per event, written in the transaction that makes it true",
    columns=(
        Column("event_id", "uuid"),
        Column("event_type", "text"),
        Column("partition_key", "text", nullable=True),
        Column("payload", "bytea"),
        Column("headers", "jsonb", default="'{}'"),
        Column("status", "text", default="'PENDING'"),
        Column("attempts", "integer", default="0"),
        Column("last_error", "text", nullable=True),
        Column("available_at", "timestamp with time zone", default="now()"),
        Column("locked_by", "text", nullable=True),
        Column("locked_at", "timestamp with time zone", nullable=True),
        Column("delivered_at", "timestamp with time zone", nullable=True),
        Column("created_at", "timestamp with time zone", default="now()"),
        Column("updated_at", "timestamp with time zone", default="now()"),
    ),
    primary_key=("event_id",),
    name_index=_name_index,
    indexes=(
        _index("processing_queue", ("available_at", "created_at"), "PENDING"),
        _index("stuck_leases", ("locked_at",), "DELIVERING"),
        _index("metrics_count", ("status",), "PENDING", include=("attempts",)),
        _index("metrics_lag", ("status", "created_at"), "PENDING"),
        _index("prune_delivered", ("delivered_at",), "DELIVERED"),
        _index("prune_dead", ("updated_at",), "DEAD"),
    ),
    checks=((STATUS_CHECK, STATUS_CONDITION),),
)


def statements(table: TableName = DEFAULT_TABLE) -> list[str]:
    return SHAPE.statements(table)


def ddl(table: TableName = DEFAULT_TABLE) -> str:
    """The DDL as a script for psql."""
    return script(statements(table))


def drop_statements(table: TableName = DEFAULT_TABLE) -> list[str]:
    return [sql.SQL(DROP_TABLE).format(table=table.identifier).as_string(None)]


def metadata(
    table: TableName = DEFAULT_TABLE, metadata: sqlalchemy.MetaData | None = None
) -> sqlalchemy.Table:
    """The table for SQLAlchemy and Alembic's autogenerate, in `metadata` or one of its own."""
    import sqlalchemy as sa

    return SHAPE.metadata(table, sa.MetaData() if metadata is None else metadata)
