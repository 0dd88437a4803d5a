"""Handlers that work through SQLAlchemy: their session is part of the transaction that completes the event."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import orm, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from outspark.inbox import InboxEvent
from tests.integration.inbox.harness import Harness, messages


class Base(orm.DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effects"

    position: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    event: orm.Mapped[str]


NEIGHBOURS = ["a", "b", "bad", "c"]


def test_what_a_session_holds_is_flushed_and_committed_with_the_event(harness: Harness) -> None:
    @harness.router.on("orders")
    def handle(event: InboxEvent, session: orm.Session) -> None:
        session.add(Effect(event=event.message_id))
        if event.message_id == "bad":
            session.flush()
            raise ValueError("never")

    harness.accept(*messages(NEIGHBOURS), max_attempts=2)
    harness.work_to_the_end()

    assert harness.effects() == ["a", "b", "c"]
    assert harness.states()["bad"] == ("failed", 2)


def test_a_sessions_own_commit_is_only_a_savepoint(harness: Harness) -> None:
    @harness.router.on("orders")
    def handle(event: InboxEvent, session: orm.Session) -> None:
        session.add(Effect(event=event.message_id))
        session.commit()
        session.add(Effect(event="rolled back"))
        session.flush()
        session.rollback()
        if event.message_id == "bad":
            raise ValueError("after its own commit")

    harness.accept(*messages(NEIGHBOURS), max_attempts=2)
    harness.work_to_the_end()

    assert harness.effects() == ["a", "b", "c"]


def test_a_failed_flush_fails_its_event_alone(harness: Harness) -> None:
    @harness.router.on("orders")
    def handle(event: InboxEvent, session: orm.Session) -> None:
        missing: Any = None
        session.add(Effect(event=missing if event.message_id == "bad" else event.message_id))

    harness.accept(*messages(NEIGHBOURS), max_attempts=1)
    harness.work_to_the_end()

    assert harness.effects() == ["a", "b", "c"]
    assert "NotNullViolation" in harness.row("bad")["last_error"]


def commit_in_sql(session: orm.Session) -> None:
    session.execute(text("COMMIT"))


def commit_and_swallow(session: orm.Session) -> None:
    with suppress(DBAPIError):
        session.execute(text("COMMIT"))


def commit_the_connection(session: orm.Session) -> None:
    session.connection().commit()


def commit_the_driver(session: orm.Session) -> None:
    driver: Any = session.connection().connection.dbapi_connection
    driver.commit()


def roll_back_in_sql(session: orm.Session) -> None:
    session.execute(text("ROLLBACK"))


def leave_aborted(session: orm.Session) -> None:
    with suppress(DBAPIError):
        session.execute(text("SELECT 1 / 0"))


MISDEEDS = [
    commit_in_sql,
    commit_and_swallow,
    commit_the_connection,
    commit_the_driver,
    roll_back_in_sql,
    leave_aborted,
]


@pytest.mark.parametrize("misdeed", MISDEEDS, ids=lambda misdeed: misdeed.__name__)
def test_a_session_that_meddles_with_the_transaction(either: Harness, misdeed: Any) -> None:
    @either.router.on("orders")
    def handle(event: InboxEvent, session: orm.Session) -> None:
        session.add(Effect(event=event.message_id))
        session.flush()
        if event.message_id == "bad":
            misdeed(session)

    either.accept(*messages(NEIGHBOURS), max_attempts=2)
    either.work_to_the_end()

    assert either.effects() == ["a", "b", "c"]
    assert either.states() == {**dict.fromkeys("abc", ("completed", 0)), "bad": ("failed", 2)}


@pytest.mark.parametrize("misdeed", MISDEEDS, ids=lambda misdeed: misdeed.__name__)
def test_an_async_session_that_meddles_with_the_transaction(harness: Harness, misdeed: Any) -> None:
    @harness.router.on("orders")
    async def handle(event: InboxEvent, session: AsyncSession) -> None:
        session.add(Effect(event=event.message_id))
        await session.flush()
        if event.message_id == "bad":
            await session.run_sync(misdeed)

    harness.accept(*messages(NEIGHBOURS), max_attempts=2)
    harness.work_to_the_end()

    assert harness.effects() == ["a", "b", "c"]
    assert harness.states()["bad"] == ("failed", 2)


def test_async_sessions(harness: Harness) -> None:
    @harness.router.on("orders")
    async def handle(event: InboxEvent, session: AsyncSession) -> None:
        session.add(Effect(event=event.message_id))
        await session.execute(text("SELECT 1"))
        await session.commit()
        if event.message_id == "bad":
            raise ValueError("after its own commit")

    harness.accept(*messages(NEIGHBOURS), max_attempts=2)
    harness.work_to_the_end()

    assert harness.effects() == ["a", "b", "c"]
    assert harness.states()["bad"] == ("failed", 2)
