"""Enqueue with SQLAlchemy: connections and sessions, sync and async, over the drivers that services use."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outspark.contracts.openoutbox.table import ddl
from outspark.outbox.openoutbox import NewEvent, Outbox
from tests.databases import Database

ASYNC_DRIVERS = [driver for driver in ("psycopg", "asyncpg") if importlib.util.find_spec(driver)]


@pytest.fixture(params=["", "ringing"])
def outbox(request: pytest.FixtureRequest, database: Database) -> Outbox:
    database.connect().execute(ddl())
    return Outbox("public.openoutbox_events", ring=2 if request.param else 0)


@pytest.fixture
def engine(database: Database) -> Iterator[sa.Engine]:
    engine = sa.create_engine(url(database, "psycopg"))
    yield engine
    engine.dispose()


def url(database: Database, driver: str) -> str:
    return database.url.replace("postgresql://", f"postgresql+{driver}://")


def payloads(database: Database) -> list[bytes]:
    rows = database.connect().execute("SELECT payload FROM openoutbox_events ORDER BY created_at, event_id")
    return [payload for (payload,) in rows]


def three() -> list[NewEvent]:
    return [
        NewEvent("t", b"\x00%", key="k"),
        NewEvent("t", ":p", headers={"a": "ü"}),
        NewEvent("t", {"a": 1}),
    ]


STORED = [b"\x00%", b":p", b'{"a":1}']


def test_a_connection(database: Database, engine: sa.Engine, outbox: Outbox) -> None:
    events = three()
    with engine.connect() as conn:
        assert outbox.enqueue(conn, *events) == [event.id for event in events]
        assert outbox.enqueue(conn, *events) == []
        assert payloads(database) == []
        conn.rollback()
        outbox.enqueue(conn, *events)
        conn.commit()

    assert payloads(database) == STORED


def test_a_session(database: Database, engine: sa.Engine, outbox: Outbox) -> None:
    with Session(engine) as session:
        outbox.enqueue(session, *three())
        session.rollback()
        outbox.enqueue(session, *three())
        session.commit()

    assert payloads(database) == STORED


def test_a_scoped_session(database: Database, engine: sa.Engine, outbox: Outbox) -> None:
    session = scoped_session(sessionmaker(engine))
    outbox.enqueue(session, *three())
    session.commit()
    session.remove()

    assert payloads(database) == STORED


@pytest.mark.parametrize("driver", ASYNC_DRIVERS)
def test_async_sessions_and_connections(database: Database, outbox: Outbox, driver: str) -> None:
    async def run() -> None:
        engine = create_async_engine(url(database, driver))
        events = three()
        async with AsyncSession(engine) as session:
            assert await outbox.enqueue_async(session, *events) == [event.id for event in events]
            assert payloads(database) == []
            await session.commit()
        async with engine.connect() as conn:
            assert await outbox.enqueue_async(conn, *events) == []
            assert len(await outbox.enqueue_async(conn, *three())) == 3
            await conn.rollback()
        await engine.dispose()

    asyncio.run(run())
    assert payloads(database) == STORED


def test_each_call_refuses_the_other_kind(engine: sa.Engine, outbox: Outbox) -> None:
    session = AsyncSession(create_async_engine(engine.url))

    with pytest.raises(TypeError, match=r"enqueue cannot write through sqlalchemy\..*AsyncSession"):
        outbox.enqueue(session, NewEvent("t", b""))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"enqueue_async cannot write through sqlalchemy\..*Session"):
        asyncio.run(outbox.enqueue_async(Session(engine), NewEvent("t", b"")))  # type: ignore[arg-type]
