"""What travels: `Event` is one outbox row in the same form for every contract, `Message` is what a publisher sends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outspark.errors import EventInvalid, HeadersInvalid

Stored = Sequence[tuple[str, bytes | None]]
"""Headers as Kafka has them: in order, of bytes; a name may be there twice, and a value may be null."""


@dataclass(slots=True)
class Event:
    """One claimed row. `id` is the row's, as text; `headers` is whatever JSON it holds.

    A `key` of bytes that are not UTF-8 carries them as surrogate escapes, as file names do in Python.
    Not frozen: a lane builds hundreds of thousands of these, and a frozen dataclass costs three times as much.
    """

    id: str
    type: str
    key: str | None
    payload: bytes
    headers: Any
    attempts: int
    created_at: datetime
    order_key: str | None = None
    """What order is kept by: the key, or what stands in for it where the contract orders events without one."""
    cluster: str | None = None
    """The destination that the event itself asks for."""
    message_id: str | None = None
    """What consumers know it by, where that is not the id of its row."""
    topic: str | None = None
    """The topic that the event itself asks for."""
    max_attempts: int | None = None
    """How many failures make this one dead, where the row says so."""
    aggregate: tuple[str, str] | None = None
    """Type and id of what the event is about, where the contract has them."""
    stored: Stored = ()
    """Headers that the contract keeps beside the event as bytes; they go before the others."""


@dataclass(slots=True)
class Message:
    """One event as it goes to a destination: routed, transformed, with headers that are strings."""

    id: str
    topic: str
    key: str | None
    payload: bytes
    headers: Mapping[str, str]
    order_key: str | None = None
    """Messages of the same order key must not overtake each other; None may go in any order."""
    stored: Stored = ()
    """Headers that go before the others, as they are; only for a publisher that keeps them."""


NO_HEADERS: Mapping[str, str] = {}


def wire_headers(headers: Any) -> Mapping[str, str]:
    """Headers as text: strings stay, nested values and numbers become JSON text, null values are dropped.

    `{"a": "x", "n": 1, "o": {"k": []}}` becomes `{"a": "x", "n": "1", "o": '{"k": []}'}`.
    """
    if not headers:
        if headers is None or headers == {}:
            return NO_HEADERS
        raise HeadersInvalid(headers)
    if not isinstance(headers, dict):
        raise HeadersInvalid(headers)
    for value in headers.values():
        if type(value) is not str:
            break
    else:
        return headers
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in headers.items()
        if value is not None
    }


def text_headers(stored: Stored, others: Mapping[str, str]) -> dict[str, str]:
    """All headers for a destination that has text, and one of a name; EventInvalid for what would be lost there."""
    found: dict[str, str] = {}
    for name, value in stored:
        if name in found or name in others:
            raise EventInvalid(f"header {name!r} is there twice, which this destination cannot carry")
        if value is None:
            raise EventInvalid(f"header {name!r} is null, which this destination cannot carry")
        try:
            found[name] = value.decode()
        except UnicodeDecodeError:
            raise EventInvalid(f"header {name!r} is not UTF-8, and this destination carries text") from None
    return {**found, **others}
