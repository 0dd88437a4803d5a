"""Sending from coroutines: the event loop goes on, whatever the broker does."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import time
from collections.abc import Awaitable, Callable

import psycopg
import pytest
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

from outspark.errors import TransactionRequired
from outspark.outbox.jeap import JeapOutbox
from tests.integration.outbox.jeap.harness import SHORT, Harness, bodies, message, messages

ASYNC_DRIVERS = [driver for driver in ("psycopg", "asyncpg") if importlib.util.find_spec(driver)]


def url(harness: Harness, driver: str) -> str:
    return harness.database.url.replace("postgresql://", f"postgresql+{driver}://")


@pytest.mark.parametrize("driver", ASYNC_DRIVERS)
def test_an_async_session(harness: Harness, driver: str) -> None:
    outbox = harness.outbox()

    async def work() -> None:
        engine = create_async_engine(url(harness, driver), pool_size=1, max_overflow=0, pool_timeout=5)
        async with AsyncSession(engine) as session:
            async with session.begin():
                await outbox.send_async(session, *messages(2))
                async with session.begin_nested() as savepoint:
                    await outbox.send_async(session, message(b"within"))
                    await savepoint.rollback()
                await outbox.send_scheduled_async(session, message(b"later"))
            async with session.begin():
                await outbox.send_async(session, message(b"rolled back"))
                await session.rollback()
            with pytest.raises(TransactionRequired, match="session is in none"):
                await outbox.send_async(session, message())
        async with engine.begin() as conn:
            await outbox.send_scheduled_async(conn, message(b"on a connection"))
            with pytest.raises(TransactionRequired, match="use a SQLAlchemy AsyncSession"):
                await outbox.send_async(conn, message())  # type: ignore[arg-type]
        await engine.dispose()

    asyncio.run(work())
    rows = harness.rows()
    assert bodies(rows) == [b"0", b"1", b"later", b"on a connection"]
    assert [row.sent_immediately is not None for row in rows] == [True, True, False, False]
    assert all(60 <= row.hold < 65 for row in rows[:2])
    assert harness.posted("immediate") == {"committed": 2, "rolled_back": 2}
    assert harness.posted("scheduled") == {"committed": 1, "unknown": 1}
    assert harness.transmitted() == 2


def test_an_async_scoped_session(harness: Harness) -> None:
    outbox = harness.outbox()

    async def work() -> None:
        engine = create_async_engine(url(harness, "psycopg"))
        session = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        async with session.begin():
            await outbox.send_async(session, message())
        await session.remove()
        await engine.dispose()

    asyncio.run(work())
    assert harness.row().sent_immediately


def test_an_async_connection_of_psycopg(harness: Harness) -> None:
    outbox = harness.outbox()

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(harness.database.url, autocommit=True) as conn:
            async with outbox.transaction_async(conn) as tx:
                await tx.send(*messages(2))
                await tx.send_scheduled(message(b"later"))
            async with outbox.transaction_async(conn) as tx:
                await tx.send(message(b"rolled back"))
                _roll_back()
            with pytest.raises(TransactionRequired, match="transaction_async"):
                await outbox.send_async(conn, message())  # type: ignore[arg-type]
            with pytest.raises(TransactionRequired, match="send_scheduled_async needs"):
                await outbox.send_scheduled_async(conn, message())
            async with conn.transaction():
                await outbox.send_scheduled_async(conn, message(b"on a connection"))

    asyncio.run(work())
    rows = harness.rows()
    assert bodies(rows) == [b"0", b"1", b"later", b"on a connection"]
    assert [row.sent_immediately is not None for row in rows] == [True, True, False, False]
    assert harness.posted("immediate") == {"committed": 2, "rolled_back": 1}
    assert harness.posted("scheduled") == {"committed": 1, "unknown": 1}


def _roll_back() -> None:
    raise psycopg.Rollback


async def by_session(harness: Harness, outbox: JeapOutbox) -> None:
    engine = create_async_engine(url(harness, "psycopg"))
    async with AsyncSession(engine) as session, session.begin():
        await outbox.send_async(session, message())
    await engine.dispose()


async def by_connection(harness: Harness, outbox: JeapOutbox) -> None:
    async with await psycopg.AsyncConnection.connect(harness.database.url) as conn:
        async with outbox.transaction_async(conn) as tx:
            await tx.send(message())


@pytest.mark.needs("kafka")
@pytest.mark.parametrize("send", [by_session, by_connection])
def test_a_broker_that_hangs_does_not_stop_the_event_loop(
    harness: Harness, send: Callable[[Harness, JeapOutbox], Awaitable[None]]
) -> None:
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            started = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - started)

    async def work(outbox: JeapOutbox) -> None:
        ticking = asyncio.create_task(tick())
        await send(harness, outbox)
        ticking.cancel()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = {"type": "kafka", "url": f"kafka://127.0.0.1:{silent.getsockname()[1]}"}
        outbox = harness.outbox(destination=hanging, **SHORT)
        started = time.monotonic()
        asyncio.run(work(outbox))
        held = time.monotonic() - started

    assert held >= 0.5
    assert longest < held / 2
    assert harness.row().waits
