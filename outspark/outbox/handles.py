"""Connections and sessions as services have them: recognised without importing what a service does not use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy
    from sqlalchemy import orm
    from sqlalchemy.ext import asyncio as aio

    Handle = (
        psycopg.Connection[Any]
        | psycopg.Cursor[Any]
        | sqlalchemy.Connection
        | orm.Session
        | orm.scoped_session[Any]
    )
    AsyncHandle = (
        psycopg.AsyncConnection[Any]
        | psycopg.AsyncCursor[Any]
        | aio.AsyncConnection
        | aio.AsyncSession
        | aio.async_scoped_session[Any]
    )


def as_session(handle: object) -> orm.Session | None:
    if "sqlalchemy.orm" not in sys.modules:
        return None
    from sqlalchemy import orm

    if isinstance(handle, orm.scoped_session):
        handle = handle()
    return handle if isinstance(handle, orm.Session) else None


def as_connection(handle: object) -> sqlalchemy.Connection | None:
    if "sqlalchemy" not in sys.modules:
        return None
    import sqlalchemy

    return handle if isinstance(handle, sqlalchemy.Connection) else None


def as_async_session(handle: object) -> aio.AsyncSession | None:
    if "sqlalchemy.ext.asyncio" not in sys.modules:
        return None
    from sqlalchemy.ext import asyncio as aio

    if isinstance(handle, aio.async_scoped_session):
        handle = handle()
    return handle if isinstance(handle, aio.AsyncSession) else None


def as_async_connection(handle: object) -> aio.AsyncConnection | None:
    if "sqlalchemy.ext.asyncio" not in sys.modules:
        return None
    from sqlalchemy.ext import asyncio as aio

    return handle if isinstance(handle, aio.AsyncConnection) else None
