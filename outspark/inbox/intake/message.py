"""A message as it comes from a broker, in one form for all of them, and what an inbox makes of it.

Its id and its time come from the message itself, so that they are the same whenever, wherever and by whomever it is
delivered again.
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
# As they are usually written. With an e in front the time may lie beyond the calendar.
_UUID7 = re.compile(
    r"([0-9a-d][0-9a-f]{7}-[0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII
)


@dataclass(slots=True)
class Incoming:
    """One message as it goes into the table. `error` makes it dead from the start."""

    message_id: str
    event_type: str
    source: str
    payload: str | bytes
    """Bytes are a body as it came, which nobody has looked into."""
    headers: str
    created_at: datetime | None
    """None is the time of acceptance, by the database's clock."""
    own_time: bool
    """Is `created_at` the message's own, which even another publishing of it would carry?"""
    idempotency_key: str | None = None
    trace_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    schema_version: str | None = None
    error: str | None = None

    def refused(self, body: bytes | None, error: str) -> Incoming:
        """The same message, dead from the start; its idempotency key stays free for a sound one."""
        return replace(self, payload=wrap(body or b""), error=storable(error), idempotency_key=None)

    def checked(self) -> Incoming:
        """Refused where its body is no JSON."""
        if isinstance(self.payload, str):
            return self
        error = fault(self.payload)
        return self if error is None else self.refused(self.payload, error)


class Preview(NamedTuple):
    """Enough of a message to know whether the inbox has it already."""

    headers: Headers
    message_id: str
    header_id: str | None
    """The id that a header holds; None where the message has only its position in the broker."""


class Reader:
    """Reads messages as the settings of a consumer group say. It never fails."""

    def __init__(self, settings: AcceptSettings) -> None:
        self._group, self._source = settings.group, settings.source
        self._headers = HeaderReader(settings)

    def preview(self, message: Received) -> Preview:
        """In a fraction of the time that `read` takes."""
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
        """All but its body, for which PostgreSQL has the last word anyway."""
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
    """Both as they go into the table, and why they do not fit; mostly those of the message before."""
    error = None
    for what, text, limit in (("source", source, MAX_SOURCE), ("type", event_type, MAX_TYPE)):
        if len(text) > limit:
            error = f"{what} has {len(text)} characters, allowed: {limit}"
    return clean(event_type)[:MAX_TYPE], clean(source)[:MAX_SOURCE], error


def _event_id(headers: Headers, id: bytes) -> str | None:
    """`<source>|<id>`, the two that name a CloudEvent; None where the id is another one.

    No URI has that sign. A hash takes the place of what would be ambiguous or is too long.
    """
    places = headers.event_source()
    if places is None:
        return None
    source = headers.raw(places)
    text = utf8(id if source is None else b"%b|%b" % (source, id))
    if text is not None and len(text) <= MAX_ID and b"|" not in (id if source is None else source):
        return text
    return f"sha256:{_hash(source or b'', id)}"


def _created_at(message: Received, given: str | None, headers: Headers) -> tuple[datetime | None, bool]:
    """The message's time, and whether another publishing of the same message would have the same."""
    made = _uuid7_time(given) if given is not None else None
    made = made or _rfc3339(headers.text(headers.layout.time))
    if made is not None:
        return made, True
    # A place in the broker is taken by one message only, so its time is the broker's.
    return message.timestamp, given is None and message.timestamp is not None


def _uuid7_time(text: str) -> datetime | None:
    if plain := _UUID7.fullmatch(text):
        return _at(plain[1])
    # It may be written in other ways.
    try:
        id = UUID(text)
        return _EPOCH + timedelta(milliseconds=id.int >> 80) if id.version == 7 else None
    except (ValueError, OverflowError):
        return None


@lru_cache(1024)
def _at(milliseconds: str) -> datetime:
    """In hexadecimal, with the hyphen that stands among them, since 1970; many messages share one."""
    return _EPOCH + timedelta(milliseconds=int(milliseconds.replace("-", ""), 16))


def _rfc3339(text: str | None) -> datetime | None:
    try:
        time = datetime.fromisoformat(text) if text else None
        # Near the ends of the calendar a time may not exist in UTC.
        return time.astimezone(UTC) if time is not None and time.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _idempotency_key(key: bytes | None, group: str) -> str | None:
    """`<group>:<key>`, because the index on it knows no groups; a hash, which has no colon, where that is ambiguous."""
    if key is None:
        return None
    text = utf8(key)
    plain = f"{group}:{text}"
    if text is not None and ":" not in group and len(plain) <= MAX_IDEMPOTENCY_KEY:
        return plain
    return _hash(group.encode(), key)


def _hash(first: bytes, second: bytes) -> str:
    """Of two that cannot be taken for another two."""
    return hashlib.sha256(len(first).to_bytes(4, "big") + first + second).hexdigest()


def _trace_id(headers: Headers) -> str | None:
    match = _TRACEPARENT.fullmatch(headers.text(headers.layout.trace_parent) or "")
    return match[1] if match else _short(headers.text(headers.layout.trace_id), MAX_TRACE)


def _short(text: str | None, limit: int) -> str | None:
    """What is too long for its column is left to the headers, which have all of it."""
    return text if text is not None and len(text) <= limit else None
