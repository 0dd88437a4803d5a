"""The statements of a jEAP outbox in the words of both drivers that services use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from psycopg import sql
from psycopg.adapt import PyFormat

from outspark.contracts.jeap.enqueue import Placeholder
from outspark.database.names import TableName


class Statement(NamedTuple):
    """The same statement for psycopg and for SQLAlchemy's `text`."""

    psycopg: str
    sqlalchemy: str

    @classmethod
    def compose(cls, compose: Callable[[TableName, Placeholder], str], table: TableName) -> Statement:
        return cls(compose(table, _psycopg_placeholder), compose(table, _sqlalchemy_place))


class Step(NamedTuple):
    """Something to be run on the caller's connection; its rows begin with the ids of messages."""

    statement: Statement
    params: dict[str, Any]


def _psycopg_placeholder(name: str) -> sql.Composable:
    # Text format would send every byte of a message as two.
    return sql.Placeholder(name, format=PyFormat.BINARY if name == "messages" else PyFormat.AUTO)


def _sqlalchemy_place(name: str) -> sql.Composable:
    return sql.SQL(f":{name}")
