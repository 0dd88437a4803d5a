"""SQLAlchemy sessions inside a handler's transaction: a commit or rollback of theirs ends a savepoint, nothing more.

SQLAlchemy is imported only when a handler asks for a session.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy import orm
    from sqlalchemy.ext import asyncio as aio

_JOIN: Final = "create_savepoint"


def is_session(hint: Any) -> bool:
    """Is the annotation a session, sync or async? If so, the module of the handler has imported SQLAlchemy."""
    orm = sys.modules.get("sqlalchemy.orm")
    if not isinstance(hint, type):
        return False
    return (orm is not None and issubclass(hint, orm.Session)) or is_async_session(hint)


def is_async_session(hint: Any) -> bool:
    aio = sys.modules.get("sqlalchemy.ext.asyncio")
    return isinstance(hint, type) and aio is not None and issubclass(hint, aio.AsyncSession)


class Sessions:
    """Opens sessions on one connection. While a session is open, the connection is in a transaction of the worker."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        self._engine: sqlalchemy.Engine | None = None

    @contextmanager
    def open(self) -> Iterator[orm.Session]:
        """Changes that the handler has not flushed are flushed at the end."""
        from sqlalchemy import orm

        with self._ready().connect() as connection, connection.begin():
            with orm.Session(connection, join_transaction_mode=_JOIN) as session:
                yield session
                session.commit()

    def _ready(self) -> sqlalchemy.Engine:
        if self._engine is None:
            import sqlalchemy as sa

            url = "postgresql+psycopg://"
            self._engine = sa.create_engine(url, creator=lambda: self._conn, poolclass=sa.StaticPool)
            _leave_transactions_alone(self._engine.dialect)
        return self._engine


class AsyncSessions:
    """The same for an async connection."""

    def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
        self._conn = conn
        self._engine: aio.AsyncEngine | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[aio.AsyncSession]:
        from sqlalchemy.ext import asyncio as aio

        async with self._ready().connect() as connection, connection.begin():
            async with aio.AsyncSession(connection, join_transaction_mode=_JOIN) as session:
                yield session
                await session.commit()

    def _ready(self) -> aio.AsyncEngine:
        if self._engine is None:
            import sqlalchemy as sa
            from sqlalchemy.ext import asyncio as aio

            async def creator() -> psycopg.AsyncConnection[Any]:
                return self._conn

            url = "postgresql+psycopg://"
            self._engine = aio.create_async_engine(url, async_creator=creator, poolclass=sa.StaticPool)
            _leave_transactions_alone(self._engine.dialect)
        return self._engine


def _leave_transactions_alone(dialect: sqlalchemy.Dialect) -> None:
    """The transaction is the worker's: SQLAlchemy must neither end it nor close its connection."""

    def leave(dbapi_connection: Any) -> None:
        pass

    for name in ("do_commit", "do_rollback", "do_close", "do_terminate"):
        setattr(dialect, name, leave)
