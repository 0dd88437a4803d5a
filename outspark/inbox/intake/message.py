"""Reads a message of any broker into the row that the inbox stores.

Id and time come from the message itself, so that every redelivery, by any broker and to any consumer, has the same.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from outspark.brokers.feed import Received
from outspark.config.inbox import AcceptSettings
from outspark.inbox.intake.encoding import clean, fault, fitting, to_bytes, utf8, wrap
from outspark.inbox.intake.headers import HeaderReader, Headers
from outspark.redaction import storable

MAX_ID, MAX_TYPE, MAX_SOURCE, MAX_IDEMPOTENCY_KEY = 255, 100, 255, 128
MAX_TRACE, MAX_VERSION = 64, 50

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
# The usual notation. With a first digit above d, the time may lie beyond the calendar.
_UUID7 = re.compile(
    r"([0-9a-d][0-9a-f]{7}-[0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII
)


@dataclass(slots=True)
class Incoming:
    """One message as it is stored in the table. A message with an `error` is stored as dead."""

    message_id: str
    event_type: str
    source: str
    payload: str | bytes
    """Bytes are the body as the broker delivered it, not parsed yet."""
    headers: str
    created_at: datetime | None
    """None is the time of acceptance, by the database's clock."""
    own_time: bool
    """Whether `created_at` belongs to the message, so that a second publish of it would have the same time."""
    idempotency_key: str | None = None
    trace_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    schema_version: str | None = None
    error: str | None = None

    def refused(self, body: bytes | None, error: str) -> Incoming:
        """The same message to be stored as dead; its idempotency key stays free for a valid message."""
        return replace(self, payload=wrap(body or b""), error=storable(error), idempotency_key=None)

    def checked(self) -> Incoming:
        """The message, refused if its body is not JSON."""
        if isinstance(self.payload, str):
            return self
        error = fault(self.payload)
        return self if error is None else self.refused(self.payload, error)


class Preview(NamedTuple):
    """The part of a message by which duplicates are found."""

    headers: Headers
    message_id: str
    header_id: str | None
    """The id from a header; None if the message is identified by its position in the broker."""


class Reader:
    """Reads messages as the settings of a consumer group say. It accepts any input without raising."""

    def __init__(self, settings: AcceptSettings) -> None:
        self._group, self._source = settings.group, settings.source
        self._headers = HeaderReader(settings)

    def preview(self, message: Received) -> Preview:
        """Read the id only, in a fraction of the time that `read` takes."""
        headers = self._headers.read(message.headers)
        layout = headers.layout
        given = headers.raw(layout.id)
        if given is not None:
            id = fitting(given, MAX_ID)
            return Preview(headers, _event_id(headers, given) or id if layout.cloud_events else id, id)
        position = f"{message.log or message.topic}-{message.partition}-{message.offset}"
        return Preview(headers, fitting(to_bytes(position), MAX_ID), None)

    def message_id(self, message: Received) -> str:
        return self.preview(message).message_id

    def read(self, message: Received, preview: Preview | None = None) -> Incoming:
        """Read everything but the body, which PostgreSQL checks in the INSERT."""
        headers, message_id, given = preview or self.preview(message)
        layout = headers.layout
        created_at, own_time = _created_at(message, given, headers)
        event_type, source, error = _kind(
            headers.text(layout.type) or message.topic,
            self._source or headers.text(layout.source) or message.topic,
        )
        body, stored = message.body or "null", headers.stored(message.key)
        incoming = Incoming(message_id, event_type, source, body, stored, created_at, own_time)
        if layout.has_more:
            incoming.idempotency_key = _idempotency_key(headers.raw(layout.idempotency), self._group)
            incoming.trace_id = _trace_id(headers)
            incoming.correlation_id = _short(headers.text(layout.correlation), MAX_TRACE)
            incoming.causation_id = _short(headers.text(layout.causation), MAX_TRACE)
            incoming.schema_version = _short(headers.text(layout.version), MAX_VERSION)
        return incoming if error is None else incoming.refused(message.body, error)


@lru_cache(1024)
def _kind(event_type: str, source: str) -> tuple[str, str, str | None]:
    """Type and source as they are stored, and an error if one is too long. Cached: most messages repeat them."""
    error = None
    for what, text, limit in (("source", source, MAX_SOURCE), ("type", event_type, MAX_TYPE)):
        if len(text) > limit:
            error = f"{what} has {len(text)} characters, allowed: {limit}"
    return clean(event_type)[:MAX_TYPE], clean(source)[:MAX_SOURCE], error


def _event_id(headers: Headers, id: bytes) -> str | None:
    """`<source>|<id>`, which together identify a CloudEvent; None if the id does not come from a CloudEvent.

    A URI cannot contain `|`. If the text is ambiguous or too long, a hash is used instead.
    """
    columns = headers.event_source()
    if columns is None:
        return None
    source = headers.raw(columns)
    text = utf8(id if source is None else b"%b|%b" % (source, id))
    if text is not None and len(text) <= MAX_ID and b"|" not in (id if source is None else source):
        return text
    return f"sha256:{_hash(source or b'', id)}"


def _created_at(message: Received, given: str | None, headers: Headers) -> tuple[datetime | None, bool]:
    """The message's time, and whether a second publish of the same message would have the same time."""
    own = _uuid7_time(given) if given is not None else None
    own = own or _rfc3339(headers.text(headers.layout.time))
    if own is not None:
        return own, True
    # A message that is identified by its position exists once in the broker, so the broker's timestamp is its own.
    return message.timestamp, given is None and message.timestamp is not None


def _uuid7_time(text: str) -> datetime | None:
    if plain := _UUID7.fullmatch(text):
        return _at(plain[1])
    # Other notations: upper case, braces, without hyphens.
    try:
        id = UUID(text)
        return _EPOCH + timedelta(milliseconds=id.int >> 80) if id.version == 7 else None
    except (ValueError, OverflowError):
        return None


@lru_cache(1024)
def _at(milliseconds: str) -> datetime:
    """Milliseconds since 1970 in hexadecimal, with the UUID's hyphen; cached, as many messages share one."""
    return _EPOCH + timedelta(milliseconds=int(milliseconds.replace("-", ""), 16))


def _rfc3339(text: str | None) -> datetime | None:
    try:
        time = datetime.fromisoformat(text) if text else None
        # Near the limits of the calendar, the conversion to UTC may overflow.
        return time.astimezone(UTC) if time is not None and time.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _idempotency_key(key: bytes | None, group: str) -> str | None:
    """`<group>:<key>`, because the unique index does not include the group; a hash, without a colon, if ambiguous."""
    if key is None:
        return None
    text = utf8(key)
    plain = f"{group}:{text}"
    if text is not None and ":" not in group and len(plain) <= MAX_IDEMPOTENCY_KEY:
        return plain
    return _hash(group.encode(), key)


def _hash(first: bytes, second: bytes) -> str:
    """Hash a pair of values; the length of the first keeps different pairs apart."""
    return hashlib.sha256(len(first).to_bytes(4, "big") + first + second).hexdigest()


def _trace_id(headers: Headers) -> str | None:
    match = _TRACEPARENT.fullmatch(headers.text(headers.layout.trace_parent) or "")
    return match[1] if match else _short(headers.text(headers.layout.trace_id), MAX_TRACE)


def _short(text: str | None, limit: int) -> str | None:
    """None if the text is too long for its column; the stored headers have it in full."""
    return text if text is not None and len(text) <= limit else None
