"""What travels: `Event` is one outbox row in the same form for every contract, `Message` is what a publisher sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outspark.headers import Stored


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
