"""The shape of a table, declared once by its contract; DDL and SQLAlchemy metadata are generated from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql

from outspark.database.names import TableName

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.sql.schema import SchemaItem

CREATE_TABLE = """\
-- {purpose}
CREATE TABLE IF NOT EXISTS {table} (
    {lines}
){partition_by}"""

CREATE_INDEX = "CREATE {unique}INDEX {how}{name} ON {table} ({columns}){include}{where}"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    """In the spelling of PostgreSQL's format_type."""
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
    """`where` in the spelling of pg_get_indexdef."""
    include: tuple[str, ...] = ()
    unique: bool = False


def _as_written(table: TableName, check: str) -> str:
    return check


@dataclass(frozen=True, slots=True)
class Shape:
    """Names, types, conditions and defaults are a contract's own constants, never user input."""

    purpose: str
    """One line about the table, as a comment in the DDL."""
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    name_index: Callable[[TableName, Index], str]
    indexes: tuple[Index, ...] = ()
    checks: tuple[tuple[str, str], ...] = ()
    """Name and condition of each CHECK."""
    name_check: Callable[[TableName, str], str] = _as_written
    """Maps the name of a check to its constraint name on this table."""
    partition_by: str = ""
    """The partition key, such as `RANGE (created_at)`."""

    def create_table(self, table: TableName) -> str:
        lines: list[sql.Composable] = [
            *(sql.SQL(f"{_quoted(column.name)} {self.declaration(column)}") for column in self.columns),
            *(self.check_clause(table, *check) for check in self.checks),
        ]
        if len(self.primary_key) > 1:
            lines.append(sql.SQL(f"PRIMARY KEY ({', '.join(map(_quoted, self.primary_key))})"))
        return _text(
            sql.SQL(CREATE_TABLE).format(
                purpose=sql.SQL(self.purpose),
                table=table.identifier,
                lines=sql.SQL(",\n    ").join(lines),
                partition_by=sql.SQL(f" PARTITION BY {self.partition_by}" if self.partition_by else ""),
            )
        )

    def check_clause(self, table: TableName, name: str, condition: str) -> sql.Composable:
        named = _identifier(self.name_check(table, name))
        return sql.SQL("CONSTRAINT {} CHECK ({})").format(named, sql.SQL(condition))

    def declaration(self, column: Column) -> str:
        return f"{column.type} PRIMARY KEY" if (column.name,) == self.primary_key else column.declaration

    def create_index(self, table: TableName, index: Index, how: str = "") -> str:
        """One CREATE INDEX; `how` is inserted before the name, such as `CONCURRENTLY `, and is never user input."""
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
            sa.Column(column.name, sqlalchemy_type(column), **self.column_options(column))
            for column in self.columns
        ]
        items, options = self.table_options(table)
        return sa.Table(table.table, home, *columns, *items, schema=table.schema, **options)

    def column_options(self, column: Column) -> dict[str, Any]:
        """The arguments of `sqlalchemy.Column` besides name and type."""
        import sqlalchemy as sa

        return {
            "primary_key": column.name in self.primary_key,
            "autoincrement": False,
            "nullable": column.nullable,
            "server_default": None if column.default is None else sa.text(column.default),
        }

    def table_options(self, table: TableName) -> tuple[list[SchemaItem], dict[str, Any]]:
        """Checks, indexes and options of the table for SQLAlchemy. Naming conventions do not change these names."""
        import sqlalchemy as sa
        from sqlalchemy.sql.naming import conv

        indexes = [
            sa.Index(
                conv(self.name_index(table, index)),
                *index.columns,
                unique=index.unique,
                postgresql_include=list(index.include),
                postgresql_where=sa.text(index.where) if index.where else None,
            )
            for index in self.indexes
        ]
        checks = [
            sa.CheckConstraint(condition, name=conv(self.name_check(table, name)))
            for name, condition in self.checks
        ]
        options = {"postgresql_partition_by": self.partition_by} if self.partition_by else {}
        return [*checks, *indexes], options


def script(statements: list[str]) -> str:
    """Statements as a script for psql."""
    return ";\n\n".join(statements) + ";\n"


def sqlalchemy_type(column: Column) -> sqlalchemy.types.TypeEngine[Any]:
    from sqlalchemy.dialects import postgresql as pg

    base, _, length = column.type.partition("(")
    if base == "character varying":
        return pg.VARCHAR(int(length.rstrip(")")) if length else None)
    types: dict[str, sqlalchemy.types.TypeEngine[Any]] = {
        "uuid": pg.UUID(),
        "text": pg.TEXT(),
        "bytea": pg.BYTEA(),
        "jsonb": pg.JSONB(none_as_null=column.nullable),
        "boolean": pg.BOOLEAN(),
        "integer": pg.INTEGER(),
        "bigint": pg.BIGINT(),
        "timestamp without time zone": pg.TIMESTAMP(),
        "timestamp with time zone": pg.TIMESTAMP(timezone=True),
    }
    return types[column.type]


def _quoted(name: str) -> str:
    # Only a name that needs quotes gets them, so that the DDL reads as if written by hand.
    return '"key"' if name == "key" else name


def _identifier(name: str) -> sql.Composable:
    return sql.SQL(name) if re.fullmatch("[a-z_][a-z0-9_]*", name) else sql.Identifier(name)


def _text(composed: sql.Composed) -> str:
    return composed.as_string(None)
