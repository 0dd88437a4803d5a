"""The shape of a table, written down once by its contract; DDL and SQLAlchemy metadata come from the same lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql

from outspark.contracts.names import TableName

if TYPE_CHECKING:
    import sqlalchemy

CREATE_TABLE = """\
-- {purpose}
CREATE TABLE IF NOT EXISTS {table} (
    {lines}
)"""

CREATE_INDEX = "CREATE {unique}INDEX {how}{name} ON {table} ({columns}){include}{where}"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    """As PostgreSQL's format_type writes it."""
    default: str | None = None
    nullable: bool = False

    @property
    def declaration(self) -> str:
        null = "" if self.nullable else " NOT NULL"
        return self.type + null + ("" if self.default is None else f" DEFAULT {self.default}")


@dataclass(frozen=True, slots=True)
class Index:
    purpose: str
    columns: tuple[str, ...]
    where: str = ""
    printed: str = ""
    """`where` as PostgreSQL writes it back."""
    include: tuple[str, ...] = ()
    unique: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """Names, types, conditions and defaults are a contract's own constants, never anything from outside."""

    purpose: str
    """One line about the table, for the DDL."""
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    name_index: Callable[[TableName, Index], str]
    indexes: tuple[Index, ...] = ()
    checks: tuple[tuple[str, str], ...] = ()
    """Name and condition of each CHECK."""

    def create_table(self, table: TableName) -> str:
        checks = [f"CONSTRAINT {name} CHECK ({condition})" for name, condition in self.checks]
        lines = [f"{_quoted(column.name)} {self.declaration(column)}" for column in self.columns] + checks
        if len(self.primary_key) > 1:
            lines.append(f"PRIMARY KEY ({', '.join(map(_quoted, self.primary_key))})")
        return _text(
            sql.SQL(CREATE_TABLE).format(
                purpose=sql.SQL(self.purpose), table=table.identifier, lines=sql.SQL(",\n    ".join(lines))
            )
        )

    def declaration(self, column: Column) -> str:
        return f"{column.type} PRIMARY KEY" if (column.name,) == self.primary_key else column.declaration

    def create_index(self, table: TableName, index: Index, how: str = "") -> str:
        """One CREATE INDEX; `how` is what stands before the name: `CONCURRENTLY `, nothing from outside."""
        include = f" INCLUDE ({', '.join(map(_quoted, index.include))})" if index.include else ""
        return _text(
            sql.SQL(CREATE_INDEX).format(
                unique=sql.SQL("UNIQUE " if index.unique else ""),
                how=sql.SQL(how),
                name=sql.Identifier(self.name_index(table, index)),
                table=table.identifier,
                columns=sql.SQL(", ".join(map(_quoted, index.columns))),
                include=sql.SQL(include),
                where=sql.SQL(f" WHERE {index.where}" if index.where else ""),
            )
        )

    def statements(self, table: TableName) -> list[str]:
        """The DDL, one statement each, in the order to run them. Running them again changes nothing."""
        indexes = (self.create_index(table, index, "IF NOT EXISTS ") for index in self.indexes)
        return [self.create_table(table), *indexes]

    def metadata(self, table: TableName, home: sqlalchemy.MetaData) -> sqlalchemy.Table:
        """The table for SQLAlchemy and Alembic's autogenerate."""
        import sqlalchemy as sa

        columns = [
            sa.Column(
                column.name,
                _sqlalchemy_type(column.type),
                primary_key=column.name in self.primary_key,
                autoincrement=False,
                nullable=column.nullable,
                server_default=None if column.default is None else sa.text(column.default),
            )
            for column in self.columns
        ]
        indexes = [
            sa.Index(
                self.name_index(table, index),
                *index.columns,
                unique=index.unique,
                postgresql_include=list(index.include),
                postgresql_where=sa.text(index.where) if index.where else None,
            )
            for index in self.indexes
        ]
        checks = [sa.CheckConstraint(condition, name=name) for name, condition in self.checks]
        return sa.Table(table.table, home, *columns, *checks, *indexes, schema=table.schema)


def script(statements: list[str]) -> str:
    """Statements as a script for psql."""
    return ";\n\n".join(statements) + ";\n"


def _sqlalchemy_type(name: str) -> sqlalchemy.types.TypeEngine[Any]:
    from sqlalchemy.dialects import postgresql as pg

    base, _, length = name.partition("(")
    if base == "character varying":
        return pg.VARCHAR(int(length.rstrip(")")) if length else None)
    types: dict[str, sqlalchemy.types.TypeEngine[Any]] = {
        "uuid": pg.UUID(),
        "text": pg.TEXT(),
        "bytea": pg.BYTEA(),
        "jsonb": pg.JSONB(),
        "boolean": pg.BOOLEAN(),
        "integer": pg.INTEGER(),
        "bigint": pg.BIGINT(),
        "timestamp without time zone": pg.TIMESTAMP(),
        "timestamp with time zone": pg.TIMESTAMP(timezone=True),
    }
    return types[name]


def _quoted(name: str) -> str:
    # What needs no quotes goes without, so that a DDL reads as a person would write it.
    return '"key"' if name == "key" else name


def _text(composed: sql.Composed) -> str:
    return composed.as_string(None)
