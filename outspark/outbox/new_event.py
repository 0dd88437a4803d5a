"""`NewEvent` is an event as a service writes it; `check` encodes it for the table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from outspark.contracts.openoutbox.enqueue import Row
from outspark.errors import EventInvalid, HeadersInvalid
from outspark.observability import trace_context
from outspark.uuid7 import uuid7


@runtime_checkable
class JsonModel(Protocol):
    """A pydantic model."""

    def model_dump_json(self) -> str: ...


Payload = bytes | bytearray | memoryview | str | Mapping[str, Any] | Sequence[Any] | JsonModel


@dataclass(frozen=True, slots=True)
class NewEvent:
    """One event to enqueue.

    Events with the same `key`, for instance an order's number, are delivered in order. Bytes are sent as they are
    and text as UTF-8; a mapping, a list or a pydantic model becomes JSON. The event is due immediately, at
    `available_at`, or after `delay` on the database's clock. An event whose `id` is in the table is not written
    again, so a caller that retries must reuse the event that it made.
    """

    type: str
    payload: Payload
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    id: UUID = field(default_factory=uuid7)
    available_at: datetime | None = None
    delay: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest sizes that `enqueue` accepts, in bytes of UTF-8."""

    payload: int = 1024 * 1024
    headers: int = 64 * 1024
    key: int = 1024
    type: int = 255


def check(event: NewEvent, limits: Limits) -> Row:
    """Check and encode an event. EventInvalid names the event, the field and what is allowed, never the payload."""
    if not isinstance(event.id, UUID):
        raise EventInvalid(f"event {event.id!r}: id is {_kind(event.id)}, allowed: uuid.UUID")
    _check_text(event, "type", event.type, limits.type)
    if event.key is not None:
        _check_text(event, "key", event.key, limits.key)
    _check_schedule(event)
    payload, content_type = _encode(event)
    _check_size(event, "payload", len(payload), limits.payload)
    headers = _headers(event, content_type)
    _check_size(
        event, "headers", sum(len(n.encode()) + len(v.encode()) for n, v in headers.items()), limits.headers
    )
    return Row(event.id, event.type, event.key, payload, headers, event.available_at, event.delay)


def _encode(event: NewEvent) -> tuple[bytes, str | None]:
    """The payload as bytes, and its content type if this module has encoded it."""
    match event.payload:
        case bytes() | bytearray() | memoryview() as raw:
            return bytes(raw), None
        case str() as text:
            return _utf8(event, "payload", text), None
        case JsonModel() as model:
            return model.model_dump_json().encode(), "application/json"
        case dict() | list() | tuple() | Mapping() as data:
            return _json(event, data), "application/json"
        case other:
            raise _invalid(
                event, f"payload is {_kind(other)}, allowed: bytes, str, dict, list or a pydantic model"
            )


def _json(event: NewEvent, data: object) -> bytes:
    try:
        data = dict(data) if isinstance(data, Mapping) else data
        return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise _invalid(
            event, f"payload is not JSON ({error}); encode it yourself or use a pydantic model"
        ) from error


def _headers(event: NewEvent, content_type: str | None) -> dict[str, str]:
    if not isinstance(event.headers, Mapping):
        raise HeadersInvalid(event.headers)
    headers = dict(event.headers)
    for name, value in headers.items():
        _check_header(event, name, value)
    present = {name.lower() for name in headers}
    if content_type is not None and "content-type" not in present:
        headers["content-type"] = content_type
    return headers if "traceparent" in present else {**headers, **trace_context.current()}


def _check_header(event: NewEvent, name: object, value: object) -> None:
    if not isinstance(name, str) or not name:
        raise _invalid(event, f"a header's name is {name!r}, allowed: text that is not empty")
    if not isinstance(value, str):
        raise _invalid(
            event, f"header {name!r} is {_kind(value)}, allowed: str; write numbers and objects as text"
        )
    for text in (name, value):
        _utf8(event, f"header {name!r}", text)
        if any(character in text for character in "\r\n\0"):
            raise _invalid(event, f"header {name!r} has a line break or NUL, which no broker carries")


def _check_text(event: NewEvent, what: str, text: object, limit: int) -> None:
    if not isinstance(text, str):
        raise _invalid(event, f"{what} is {_kind(text)}, allowed: str")
    if not text.strip():
        raise _invalid(event, f"{what} is empty")
    if "\0" in text:
        raise _invalid(event, f"{what} has a NUL, which PostgreSQL does not store in text")
    _check_size(event, what, len(_utf8(event, what, text)), limit)


def _check_size(event: NewEvent, what: str, size: int, limit: int) -> None:
    if size > limit:
        raise _invalid(event, f"{what} has {size} bytes, allowed: {limit}")


def _check_schedule(event: NewEvent) -> None:
    at, delay = event.available_at, event.delay
    if at is not None and delay is not None:
        raise _invalid(event, "available_at and delay exclude each other; give one")
    if at is not None and (not isinstance(at, datetime) or at.utcoffset() is None):
        raise _invalid(event, f"available_at is {at!r}, allowed: a datetime with a time zone")
    if delay is not None and (not isinstance(delay, timedelta) or delay < timedelta(0)):
        raise _invalid(event, f"delay is {delay!r}, allowed: a timedelta that is not negative")


def _utf8(event: NewEvent, what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _invalid(event, f"{what} is not valid Unicode: {error.reason}") from error


def _invalid(event: NewEvent, problem: str) -> EventInvalid:
    return EventInvalid(f"event {event.id} ({event.type!r}): {problem}")


def _kind(value: object) -> str:
    return type(value).__name__
