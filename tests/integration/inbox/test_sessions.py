"""Handlers that work through SQLAlchemy: their session is part of the transaction that completes the event."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import orm, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from outspark.inbox import InboxEvent
from tests.integration.inbox.place import Place, messages


class Base(orm.DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effects"

    position: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    event: orm.Mapped[str]


NEIGHBOURS = ["a", "b", "bad", "c"]


def test_what_a_session_holds_is_flushed_and_committed_with_the_event(place: Place) -> None:
    @place.router.on("orders")
    def handle(event: InboxEvent, session: orm.Session) -> None:
        session.add(Effect(event=event.message_id))
        if event.message_id == "bad":
            session.flush()
            raise ValueError("never")

    place.accept(*messages(NEIGHBOURS), max_attempts=2)
    place.work_to_the_end()

    assert place.effects() == ["a", "b", "c"]
    assert place.states()["bad"] == ("failed", 2)


def test_a_sessions_own_commit_is_only_a_savepoint(place: Place) -> None:
    @place.router.on("orders")
    def handle(event: InboxEvent, session: orm.Session) -> None:
        session.add(Effect(event=event.message_id))
        session.commit()
        session.add(Effect(event="rolled back"))
        session.flush()
        session.rollback()
        if event.message_id == "bad":
            raise ValueError("after its own commit")

    place.accept(*messages(NEIGHBOURS), max_attempts=2)
    place.work_to_the_end()

    assert place.effects() == ["a", "b", "c"]


def test_a_failed_flush_fails_its_event_alone(place: Place) -> None:
    @place.router.on("orders")
    def handle(event: InboxEvent, session: orm.Session) -> None:
        missing: Any = None
        session.add(Effect(event=missing if event.message_id == "bad" else event.message_id))

    place.accept(*messages(NEIGHBOURS), max_attempts=1)
    place.work_to_the_end()

    assert place.effects() == ["a", "b", "c"]
    assert "NotNullViolation" in place.row("bad")["last_error"]


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
def test_a_session_that_meddles_with_the_transaction(either: Place, misdeed: Any) -> None:
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
def test_an_async_session_that_meddles_with_the_transaction(place: Place, misdeed: Any) -> None:
    @place.router.on("orders")
    async def handle(event: InboxEvent, session: AsyncSession) -> None:
        session.add(Effect(event=event.message_id))
        await session.flush()
        if event.message_id == "bad":
            await session.run_sync(misdeed)

    place.accept(*messages(NEIGHBOURS), max_attempts=2)
    place.work_to_the_end()

    assert place.effects() == ["a", "b", "c"]
    assert place.states()["bad"] == ("failed", 2)


def test_async_sessions(place: Place) -> None:
    @place.router.on("orders")
    async def handle(event: InboxEvent, session: AsyncSession) -> None:
        session.add(Effect(event=event.message_id))
        await session.execute(text("SELECT 1"))
        await session.commit()
        if event.message_id == "bad":
            raise ValueError("after its own commit")

    place.accept(*messages(NEIGHBOURS), max_attempts=2)
    place.work_to_the_end()

    assert place.effects() == ["a", "b", "c"]
    assert place.states()["bad"] == ("failed", 2)
