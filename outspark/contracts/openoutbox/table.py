"""The Open Outbox table, written down once: its DDL as SQL and as SQLAlchemy metadata, its parts for `check`.

Names, types, defaults, the CHECK and the indexes are those of Open Outbox, so that its relay works on it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql

from outspark.contracts.names import TableName

if TYPE_CHECKING:
    import sqlalchemy

DEFAULT_TABLE = TableName("openoutbox_events")
PRIMARY_KEY = "event_id"
STATUS_CHECK = "check_valid_status"
STATUS_CONDITION = "status IN ('PENDING', 'DELIVERING', 'DELIVERED', 'DEAD')"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    """As PostgreSQL's format_type writes it."""
    default: str | None = None
    nullable: bool = False

    @property
    def declaration(self) -> str:
        if self.name == PRIMARY_KEY:
            return f"{self.type} PRIMARY KEY"
        null = "" if self.nullable else " NOT NULL"
        return self.type + null + ("" if self.default is None else f" DEFAULT {self.default}")


@dataclass(frozen=True, slots=True)
class Index:
    purpose: str
    columns: tuple[str, ...]
    status: str
    include: tuple[str, ...] = ()

    def name(self, table: TableName) -> str:
        """The contract's own name for the default table; `<table>_<purpose>_idx` for any other.

        With a prefix (`idx_<table>_<purpose>`) a table called `openoutbox` would clash with the default.
        """
        if table.table == DEFAULT_TABLE.table:
            return f"idx_openoutbox_{self.purpose}"
        return table.sibling(f"{self.purpose}_idx").table


COLUMNS = (
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
)

INDEXES = (
    Index("processing_queue", ("available_at", "created_at"), "PENDING"),
    Index("stuck_leases", ("locked_at",), "DELIVERING"),
    Index("metrics_count", ("status",), "PENDING", include=("attempts",)),
    Index("metrics_lag", ("status", "created_at"), "PENDING"),
    Index("prune_delivered", ("delivered_at",), "DELIVERED"),
    Index("prune_dead", ("updated_at",), "DEAD"),
)

CREATE_TABLE = """\
-- The outbox: one row per event, written in the transaction that makes it true
CREATE TABLE IF NOT EXISTS {table} (
    {columns},
    CONSTRAINT {check} CHECK ({condition})
)"""

CREATE_INDEX = "CREATE INDEX {how}{name} ON {table} ({columns}){include} WHERE status = {status}"

DROP_TABLE = "DROP TABLE {table}"


def statements(table: TableName = DEFAULT_TABLE) -> list[str]:
    """The DDL, one statement each, in the order to run them. Running them again changes nothing."""
    return [_create_table(table), *(create_index(table, index, "IF NOT EXISTS ") for index in INDEXES)]


def ddl(table: TableName = DEFAULT_TABLE) -> str:
    """The DDL as a script for psql."""
    return ";\n\n".join(statements(table)) + ";\n"


def drop_statements(table: TableName = DEFAULT_TABLE) -> list[str]:
    return [_text(sql.SQL(DROP_TABLE).format(table=table.identifier))]


def create_index(table: TableName, index: Index, how: str = "") -> str:
    """One CREATE INDEX; `how` is what stands before the name: `CONCURRENTLY `, nothing from outside."""
    include = sql.SQL(" INCLUDE ({})").format(_names(index.include)) if index.include else sql.SQL("")
    return _text(
        sql.SQL(CREATE_INDEX).format(
            how=sql.SQL(how),
            name=sql.Identifier(index.name(table)),
            table=table.identifier,
            columns=_names(index.columns),
            include=include,
            status=sql.Literal(index.status),
        )
    )


def metadata(
    table: TableName = DEFAULT_TABLE, metadata: sqlalchemy.MetaData | None = None
) -> sqlalchemy.Table:
    """The table for SQLAlchemy and Alembic's autogenerate, in `metadata` or one of its own."""
    import sqlalchemy as sa
    from sqlalchemy.dialects import postgresql as pg

    types: dict[str, sa.types.TypeEngine[Any]] = {
        "uuid": pg.UUID(),
        "text": pg.TEXT(),
        "bytea": pg.BYTEA(),
        "jsonb": pg.JSONB(),
        "integer": pg.INTEGER(),
        "timestamp with time zone": pg.TIMESTAMP(timezone=True),
    }
    columns = [
        sa.Column(
            column.name,
            types[column.type],
            primary_key=column.name == PRIMARY_KEY,
            nullable=column.nullable,
            server_default=None if column.default is None else sa.text(column.default),
        )
        for column in COLUMNS
    ]
    indexes = [
        sa.Index(
            index.name(table),
            *index.columns,
            postgresql_include=list(index.include),
            postgresql_where=sa.text(f"status = '{index.status}'"),
        )
        for index in INDEXES
    ]
    check = sa.CheckConstraint(STATUS_CONDITION, name=STATUS_CHECK)
    home = sa.MetaData() if metadata is None else metadata
    return sa.Table(table.table, home, *columns, check, *indexes, schema=table.schema)


def _create_table(table: TableName) -> str:
    columns = ",\n    ".join(f"{column.name} {column.declaration}" for column in COLUMNS)
    return _text(
        sql.SQL(CREATE_TABLE).format(
            table=table.identifier,
            columns=sql.SQL(columns),
            check=sql.SQL(STATUS_CHECK),
            condition=sql.SQL(STATUS_CONDITION),
        )
    )


def _names(names: tuple[str, ...]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.SQL, names))


def _text(composed: sql.Composed) -> str:
    return composed.as_string(None)
