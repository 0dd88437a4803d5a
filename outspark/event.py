"""`Event` is one outbox row, in the same form for every contract; `Message` is what a publisher sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outspark.headers import Stored


@dataclass(slots=True)
class Event:
    """One claimed row. `id` is the row's id as text; `headers` is the row's JSON, of any type.

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
    """Events of equal `order_key` stay in order: the key, or a substitute where the contract orders keyless events."""
    cluster: str | None = None
    """The destination that the event itself asks for."""
    message_id: str | None = None
    """The id that consumers see, where it differs from the id of the row."""
    topic: str | None = None
    """The topic that the event itself asks for."""
    max_attempts: int | None = None
    """How many failures make this event dead, where the row sets it."""
    aggregate: tuple[str, str] | None = None
    """Type and id of the aggregate that the event is about, where the contract has them."""
    stored: Stored = ()
    """Headers that the contract stores as bytes; they are sent before `headers`."""


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
    """Headers as bytes, sent unchanged before the others; only for a publisher that supports them."""
