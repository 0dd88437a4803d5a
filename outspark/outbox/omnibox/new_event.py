"""`NewOutboxEvent` is an event as a service writes it into an omni-box outbox; `to_row` checks and encodes it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from outspark.contracts.omnibox.enqueue import Row
from outspark.contracts.omnibox.table import OUTBOX
from outspark.delivery.envelopes import embedding
from outspark.errors import EventInvalid
from outspark.outbox.new_event import Limits, NewEvent, Payload, check
from outspark.uuid7 import uuid7

DEFAULT_MAX_ATTEMPTS: Final = 6

TEXT_LENGTHS: Final = {
    column.name: int(column.type.partition("(")[2].rstrip(")"))
    for column in OUTBOX.columns
    if column.type.startswith("character varying(")
}
# An escaped NUL: an even number of backslashes before it would only be backslashes.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-.*")


class EventStatus(StrEnum):
    """The values of the column `status`, in the outbox and in the inbox."""

    PENDING = "pending"
    """Also while a lane or a worker has the event locked."""
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class NewOutboxEvent:
    """One event to enqueue.

    The relay sends the event to `topic`. Events with the same `key`, by default the aggregate's id, are delivered in
    order. The payload is JSON: a mapping, a list or a pydantic model, or text or bytes that are JSON already. The
    event is due immediately, at `scheduled_at`, or after `delay` on the database's clock. An event whose
    `idempotency_key` or `id` is in the table is not written again. The default trace id is that of the current trace.
    """

    type: str
    payload: Payload
    aggregate_type: str
    aggregate_id: UUID
    topic: str
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    trace_id: str | None = None
    schema_version: str | None = None
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    scheduled_at: datetime | None = None
    delay: timedelta | None = None
    id: UUID = field(default_factory=uuid7)


def to_row(event: NewOutboxEvent, limits: Limits) -> Row:
    """Check and encode an event. EventInvalid names the event, the field and what is allowed, never the payload."""
    if not isinstance(event.aggregate_id, UUID):
        raise _invalid(event, f"aggregate_id is {type(event.aggregate_id).__name__}, allowed: uuid.UUID")
    if not isinstance(event.max_attempts, int) or event.max_attempts < 1:
        raise _invalid(event, f"max_attempts is {event.max_attempts!r}, allowed: a whole number from 1 on")
    key = str(event.aggregate_id) if event.key is None else event.key
    plain = NewEvent(event.type, event.payload, key, event.headers, event.id, event.scheduled_at, event.delay)
    checked = check(plain, limits)
    _check_lengths(event, key)
    headers = _headers(event, checked.headers)
    return Row(
        id=event.id,
        type=event.type,
        aggregate_type=event.aggregate_type,
        aggregate_id=event.aggregate_id,
        topic=event.topic,
        key=key,
        payload=_json(event, checked.payload),
        headers=json.dumps(headers) if headers else None,
        trace_id=event.trace_id or _trace_id(headers),
        idempotency_key=event.idempotency_key,
        correlation_id=event.correlation_id,
        causation_id=event.causation_id,
        schema_version=event.schema_version,
        max_attempts=event.max_attempts,
        scheduled_at=event.scheduled_at,
        delay=event.delay,
    )


def _check_lengths(event: NewOutboxEvent, key: str) -> None:
    needed = {
        "type": ("event_type", event.type),
        "aggregate_type": ("aggregate_type", event.aggregate_type),
        "topic": ("topic", event.topic),
        "key": ("partition_key", key),
    }
    optional = ("idempotency_key", "correlation_id", "causation_id", "trace_id", "schema_version")
    given = {name: (name, getattr(event, name)) for name in optional if getattr(event, name) is not None}
    for name, (column, value) in {**needed, **given}.items():
        if not isinstance(value, str):
            raise _invalid(event, f"{name} is {type(value).__name__}, allowed: str")
        if not value.strip() or "\0" in value:
            raise _invalid(event, f"{name} is empty or has a NUL, which PostgreSQL does not store in text")
        if len(value) > TEXT_LENGTHS[column]:
            raise _invalid(event, f"{name} has {len(value)} characters, allowed: {TEXT_LENGTHS[column]}")


def _json(event: NewOutboxEvent, payload: bytes) -> str:
    if not embedding.is_json(payload):
        raise _invalid(event, "payload is not JSON in UTF-8, and the table's column takes nothing else")
    if _NUL.search(payload):
        raise _invalid(event, "payload has a NUL in a string, which PostgreSQL does not store in JSON")
    return payload.decode()


def _headers(event: NewOutboxEvent, checked: Mapping[str, str]) -> dict[str, str]:
    """Without the content type that `check` has added: every payload in this table is JSON."""
    added = {} if any(name.lower() == "content-type" for name in event.headers) else {"content-type"}
    return {name: value for name, value in checked.items() if name not in added}


def _trace_id(headers: Mapping[str, str]) -> str | None:
    found = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    return found[1] if found else None


def _invalid(event: NewOutboxEvent, problem: str) -> EventInvalid:
    return EventInvalid(f"event {event.id} ({event.type!r}): {problem}")
