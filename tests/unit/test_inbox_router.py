"""Which handler an event has, and what its parameters are given."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession

from outspark.errors import HandlerInvalid, Reject
from outspark.inbox import InboxEvent, Router
from outspark.inbox.router import Handle


class User(BaseModel):
    name: str


def event(body: str = "{}") -> InboxEvent:
    return InboxEvent(
        id="1",
        type="user.created",
        message_id="m",
        group="g",
        source="users",
        body=body,
        headers={},
        attempts=0,
        max_attempts=6,
        created_at=datetime.now(UTC),
    )


def named(router: Router, name: str, *rule: Any, **options: Any) -> None:
    def handle() -> str:
        return name

    router.on(*rule, **options)(handle)


def test_the_nearest_rule_wins() -> None:
    router = Router()
    named(router, "all", "*")
    named(router, "pattern", "user.*")
    named(router, "pattern of users", "user.*", source="users")
    named(router, "exact", "user.created")
    named(router, "exact of users", "user.created", source="users")

    def found(event_type: str, source: str) -> Any:
        handler = router.find(event_type, source)
        return handler and handler.call(event(), Handle(None))

    assert found("user.created", "users") == "exact of users"
    assert found("user.created", "crm") == "exact"
    assert found("user.deleted", "users") == "pattern of users"
    assert found("user.deleted", "crm") == "pattern"
    assert found("order.paid", "crm") == "all"


def test_what_nobody_takes() -> None:
    router = Router()
    assert router.find("user.created", "users") is None

    @router.otherwise
    def rest() -> None: ...

    handler = router.find("user.created", "users")
    assert handler is not None
    assert handler.function is rest


def test_an_event_has_one_handler() -> None:
    router = Router()
    named(router, "one", "user.created")

    with pytest.raises(HandlerInvalid, match="has the handler"):
        named(router, "two", "user.created")


def test_parameters_are_given_by_annotation_or_name() -> None:
    router = Router()

    @router.on("annotated")
    def annotated(a: InboxEvent, b: User, c: dict[str, Any], d: psycopg.Connection[Any]) -> list[Any]:
        return [a, b, c, d]

    @router.on("by name")
    def by_name(payload, event, conn, extra=7):  # type: ignore[no-untyped-def]
        return [event, payload, conn, extra]

    one, conn = event('{"name": "Ada"}'), object()

    assert _call(router, "annotated", one, Handle(conn)) == [one, User(name="Ada"), {"name": "Ada"}, conn]
    assert _call(router, "by name", one, Handle(conn)) == [one, {"name": "Ada"}, conn, 7]


def test_a_session_is_asked_for_by_its_type() -> None:
    router = Router()

    @router.on("session")
    def with_session(session: orm.Session) -> Any:
        return session

    handler = router.find("session", "s")
    assert handler is not None
    assert handler.session
    assert handler.call(event(), Handle("conn", "session")) == "session"


def test_a_payload_that_does_not_fit_is_rejected_without_showing_it() -> None:
    router = Router()

    @router.on("model")
    def model(user: User) -> None: ...

    @router.on("dict")
    def as_dict(payload: dict[str, Any]) -> None: ...

    with pytest.raises(Reject, match=r"no User: name: ") as caught:
        _call(router, "model", event('{"name": [4711]}'), Handle(None))
    assert "4711" not in str(caught.value)
    with pytest.raises(Reject, match="not a JSON object but list"):
        _call(router, "dict", event("[]"), Handle(None))


def test_handlers_that_cannot_be_called_are_refused_at_once() -> None:
    router = Router()

    def unknown(number: int) -> None: ...

    def starred(*events: InboxEvent) -> None: ...

    def wrong_kind(conn: psycopg.AsyncConnection[Any]) -> None: ...

    async def wrong_kind_too(session: orm.Session) -> None: ...

    def wrong_session(session: AsyncSession) -> None: ...

    wrong: list[tuple[Callable[..., Any], str]] = [
        (unknown, "nothing is known for number"),
        (starred, "cannot be given"),
        (wrong_kind, "AsyncConnection"),
        (wrong_kind_too, "Session"),
        (wrong_session, "AsyncSession"),
    ]
    for handler, words in wrong:
        with pytest.raises(HandlerInvalid, match=words):
            router.on("x")(handler)


def test_the_longest_timeout() -> None:
    router = Router()
    named(router, "slow", "slow", timeout=timedelta(minutes=5))

    assert router.longest_timeout(timedelta(seconds=30)) == timedelta(minutes=5)


def _call(router: Router, event_type: str, one: InboxEvent, handle: Handle) -> Any:
    handler = router.find(event_type, "any")
    assert handler is not None
    return handler.call(one, handle)
