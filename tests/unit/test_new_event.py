from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from outspark.errors import EventInvalid
from outspark.outbox.new_event import Limits, NewEvent, check


class Order(BaseModel):
    number: int
    at: datetime


@pytest.mark.parametrize(
    ("payload", "encoded", "headers"),
    [
        (b"\x00\xff", b"\x00\xff", {}),
        (bytearray(b"ab"), b"ab", {}),
        (memoryview(b"ab"), b"ab", {}),
        ("für", "für".encode(), {}),
        ({"a": "ü", "b": [1]}, '{"a":"ü","b":[1]}'.encode(), {"content-type": "application/json"}),
        ([1, None], b"[1,null]", {"content-type": "application/json"}),
        (
            Order(number=7, at=datetime(2026, 1, 2, tzinfo=UTC)),
            b'{"number":7,"at":"2026-01-02T00:00:00Z"}',
            {"content-type": "application/json"},
        ),
    ],
)
def test_payloads_are_encoded(payload: Any, encoded: bytes, headers: dict[str, str]) -> None:
    checked = check(NewEvent("t", payload), Limits())

    assert checked.payload == encoded
    assert checked.headers == headers


def test_a_content_type_of_the_callers_stays() -> None:
    checked = check(NewEvent("t", {}, headers={"Content-Type": "application/vnd.order+json"}), Limits())

    assert checked.headers == {"Content-Type": "application/vnd.order+json"}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"type": ""}, "type is empty"),
        ({"type": " "}, "type is empty"),
        ({"type": 7}, "type is int, allowed: str"),
        ({"type": "x" * 256}, "type has 256 bytes, allowed: 255"),
        ({"type": "a\0b"}, "type has a NUL"),
        ({"key": ""}, "key is empty"),
        ({"key": "ü" * 513}, "key has 1026 bytes, allowed: 1024"),
        ({"key": 7}, "key is int, allowed: str"),
        ({"key": "\ud800"}, "key is not valid Unicode"),
        ({"payload": b"x" * 1_048_577}, "payload has 1048577 bytes, allowed: 1048576"),
        ({"payload": None}, "payload is NoneType, allowed: bytes, str, dict, list or a pydantic model"),
        ({"payload": 7}, "payload is int"),
        ({"payload": {"at": datetime.now(UTC)}}, "payload is not JSON (Object of type datetime"),
        ({"payload": [float("nan")]}, "payload is not JSON"),
        ({"headers": {"n": 1}}, "header 'n' is int, allowed: str"),
        ({"headers": {"o": {"k": "v"}}}, "header 'o' is dict, allowed: str"),
        ({"headers": {"": "v"}}, "a header's name is ''"),
        ({"headers": {1: "v"}}, "a header's name is 1"),
        ({"headers": {"a": "b\r\nc"}}, "header 'a' has a line break or NUL"),
        ({"headers": {"a": "x" * 65_536}}, "headers has 65537 bytes, allowed: 65536"),
        ({"headers": ["a"]}, "headers must be a JSON object of strings, not list"),
        ({"available_at": datetime(2026, 1, 1)}, "allowed: a datetime with a time zone"),
        ({"delay": timedelta(seconds=-1)}, "allowed: a timedelta that is not negative"),
        ({"delay": 5}, "delay is 5, allowed: a timedelta"),
        ({"delay": timedelta(1), "available_at": datetime.now(UTC)}, "exclude each other"),
        ({"id": "7"}, "id is str, allowed: uuid.UUID"),
    ],
)
def test_what_cannot_be_enqueued_is_refused(fields: dict[str, Any], problem: str) -> None:
    event = NewEvent(**{"type": "order.created", "payload": b"secret", **fields})

    with pytest.raises(EventInvalid) as refused:
        check(event, Limits())

    assert problem in str(refused.value)
    assert "secret" not in str(refused.value)


def test_limits_are_the_callers_to_set() -> None:
    event = NewEvent("t", b"12345")

    assert check(event, Limits(payload=5)).payload == b"12345"
    with pytest.raises(EventInvalid, match=rf"event {event.id} \('t'\): payload has 5 bytes, allowed: 4"):
        check(event, Limits(payload=4))


def test_events_have_rising_ids_of_their_own() -> None:
    ids = [NewEvent("t", b"").id for _ in range(100)]

    assert ids == sorted(set(ids))
