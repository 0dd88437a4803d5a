"""Open Outbox's table: its shape, and how an existing table is compared with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from outspark.database.names import TableName
from outspark.database.shape import Column, Index, Shape, script

if TYPE_CHECKING:
    import sqlalchemy
from collections.abc import Collection, Iterator
from typing import Any

import psycopg

from outspark.database.check import Finding, alter, compare, look_up
from outspark.database.names import resolve

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


def check_table(
    conn: psycopg.Connection[Any], table: TableName, ignore: Collection[str] = ()
) -> list[Finding]:
    """Every difference that matters, errors first; none for a table made by `ddl`."""
    table = resolve(conn, table)
    found = look_up(conn, table)
    findings = [*compare(table, SHAPE, found), *_check_status(table, found.checks)]
    return sorted(findings, key=lambda finding: finding.level)


def _check_status(table: TableName, checks: str) -> Iterator[Finding]:
    if not all(f"'{status}'" in checks for status in ("PENDING", "DELIVERING", "DELIVERED", "DEAD")):
        remedy = alter(table, f"ADD CONSTRAINT {STATUS_CHECK} CHECK ({STATUS_CONDITION})")
        yield Finding("warning", "no CHECK keeps status to the four states", remedy)
