"""A message as it comes from a broker, in one form for all of them, and what an inbox makes of it.

Its id and its time come from the message itself, so that they are the same whenever, wherever and by whomever it is
delivered again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Any, Final
from uuid import UUID

from outspark.contracts.omnibox.inbox import KEY_HEADER
from outspark.settings.inbox import AcceptSettings
from outspark.uuid7 import uuid7

MAX_ID, MAX_TYPE, MAX_SOURCE, MAX_IDEMPOTENCY_KEY = 255, 100, 255, 128
MAX_TRACE, MAX_VERSION = 64, 50
MAX_ERROR: Final = 2000

_ENCODER = json.JSONEncoder(ensure_ascii=False)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
# As they are usually written. With an e in front the time may lie beyond the calendar.
_UUID7 = re.compile(
    r"([0-9a-d][0-9a-f]{7})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII
)
# A NUL inside a string; what follows an even number of backslashes is an escape.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


@dataclass(slots=True)
class Received:
    """One message as a broker handed it over."""

    topic: str
    """Topic or subject."""
    body: bytes | None
    """None and empty are the same: a message that says nothing but that it is there."""
    headers: Iterable[tuple[str, bytes | str | None]] = ()
    key: bytes | None = None
    timestamp: datetime | None = None
    """When the broker got it, by its own account; the same on every redelivery."""
    log: str | None = None
    """Whose `partition` and `offset` these are: the stream, where that is not the topic."""
    partition: int = 0
    offset: int = 0
    handle: Any = None
    """The broker's own object, for whoever acknowledges it."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message as it goes into the table. `error` makes it dead from the start."""

    id: UUID
    message_id: str
    event_type: str
    source: str
    payload: str
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


def read(message: Received, settings: AcceptSettings) -> Incoming:
    """Never fails: what cannot be handled comes back with an error, and its body kept as it is."""
    headers = _Headers(message.headers)
    message_id, from_header = _message_id(message, headers, settings)
    created_at, own_time = _created_at(message, message_id, from_header, headers, settings)
    event_type = headers.text(settings.type_headers) or message.topic
    source = settings.source or headers.text(settings.source_headers) or message.topic
    payload, error = _payload(message.body, event_type, source)
    return Incoming(
        id=uuid7(),
        message_id=message_id,
        event_type=_clean(event_type)[:MAX_TYPE],
        source=_clean(source)[:MAX_SOURCE],
        payload=payload,
        headers=headers.stored(message.key),
        created_at=created_at,
        own_time=own_time,
        # That of a message which can never be handled stays free for a sound one.
        idempotency_key=None
        if error
        else _idempotency_key(headers.raw(settings.idempotency_headers), settings.group),
        trace_id=_trace_id(headers),
        correlation_id=_short(headers.text(settings.correlation_headers), MAX_TRACE),
        causation_id=_short(headers.text(settings.causation_headers), MAX_TRACE),
        schema_version=_short(headers.text(settings.version_headers), MAX_VERSION),
        error=error,
    )


def message_id(message: Received, settings: AcceptSettings) -> str:
    """The id alone, in a fraction of the time."""
    return _message_id(message, _Headers(message.headers), settings)[0]


def _payload(body: bytes | None, event_type: str, source: str) -> tuple[str, str | None]:
    """The body as JSON; or as text around it, and why it can never be handled."""
    for what, text, limit in (("type", event_type, MAX_TYPE), ("source", source, MAX_SOURCE)):
        if len(text) > limit:
            return wrap(body or b""), f"{what} has {len(text)} characters, allowed: {limit}"
    try:
        return _json(body), None
    except (ValueError, RecursionError) as error:
        return wrap(body or b""), f"body is not JSON: {_reason(error)}"[:MAX_ERROR]


def refuse(incoming: Incoming, message: Received, error: str) -> Incoming:
    """The same message, dead from the start; its idempotency key stays free for a sound one."""
    return replace(incoming, payload=wrap(message.body or b""), error=error[:MAX_ERROR], idempotency_key=None)


def wrap(body: bytes) -> str:
    """A body that is no JSON, as JSON: `{"raw": "...", "encoding": "base64"}`; readable text stays readable."""
    text = _utf8(body)
    if text is None:
        return json.dumps({"raw": base64.b64encode(body).decode(), "encoding": "base64"})
    return json.dumps({"raw": text, "encoding": "utf-8"}, ensure_ascii=False)


def unwrap(payload: Any) -> bytes:
    """What `wrap` was given."""
    raw: str = payload["raw"]
    return base64.b64decode(raw) if payload["encoding"] == "base64" else raw.encode()


class _Headers:
    """Headers by name in any case; of several with one name the last counts, as in Kafka."""

    def __init__(self, headers: Iterable[tuple[str, bytes | str | None]]) -> None:
        self._all = {
            name: _bytes(value) if isinstance(value, str) else value
            for name, value in headers
            if value is not None
        }
        self._by_name = {name.lower(): value for name, value in self._all.items()}

    def raw(self, names: tuple[str, ...]) -> bytes | None:
        """The first that is there and not empty."""
        for name in _lower(names):
            if value := self._by_name.get(name):
                return value
        return None

    def text(self, names: tuple[str, ...]) -> str | None:
        value = self.raw(names)
        return None if value is None else _utf8(value)

    def stored(self, key: bytes | None) -> str:
        """As a JSON object; bytes that are no text become `{"base64": "..."}`."""
        stored: dict[str, Any] = {_clean(name): _value(value) for name, value in self._all.items()}
        if key is not None:
            stored[KEY_HEADER] = _value(key)
        return _ENCODER.encode(stored)


@cache
def _lower(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the settings, which are few and ever the same."""
    return tuple(name.lower() for name in names)


def _message_id(message: Received, headers: _Headers, settings: AcceptSettings) -> tuple[str, bool]:
    """The id, and whether a header holds it."""
    given = headers.raw(settings.id_headers)
    if given is not None:
        return _fitting(given, MAX_ID), True
    place = f"{message.log or message.topic}-{message.partition}-{message.offset}"
    return _fitting(_bytes(place), MAX_ID), False


def _created_at(
    message: Received, message_id: str, from_header: bool, headers: _Headers, settings: AcceptSettings
) -> tuple[datetime | None, bool]:
    """The message's time, and whether another publishing of the same message would have the same."""
    made = (_uuid7_time(message_id) if from_header else None) or _rfc3339(headers.text(settings.time_headers))
    if made is not None:
        return made, True
    # A place in the broker is taken by one message only, so its time is the broker's.
    return message.timestamp, not from_header and message.timestamp is not None


def _uuid7_time(text: str) -> datetime | None:
    if plain := _UUID7.fullmatch(text):
        return _EPOCH + timedelta(milliseconds=int(plain[1] + plain[2], 16))
    # It may be written in other ways.
    try:
        id = UUID(text)
        return _EPOCH + timedelta(milliseconds=id.int >> 80) if id.version == 7 else None
    except (ValueError, OverflowError):
        return None


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
    text = _utf8(key)
    plain = f"{group}:{text}"
    if text is not None and ":" not in group and len(plain) <= MAX_IDEMPOTENCY_KEY:
        return plain
    return hashlib.sha256(len(group.encode()).to_bytes(4, "big") + group.encode() + key).hexdigest()


def _trace_id(headers: _Headers) -> str | None:
    match = _TRACEPARENT.fullmatch(headers.text(("traceparent",)) or "")
    return match[1] if match else _short(headers.text(("trace_id",)), MAX_TRACE)


def _json(body: bytes | None) -> str:
    """The body as text that Python takes for JSON, and PostgreSQL too: it stores no NUL and no half characters."""
    if not body:
        return "null"
    text = body.decode()
    value = _DECODER.decode(text)
    if "\\u" in text:
        if _NUL.search(text):
            raise ValueError("PostgreSQL stores no NUL in text")
        # Half of a surrogate pair has no UTF-8.
        json.dumps(value, ensure_ascii=False).encode()
    return text


def _number(text: str) -> None:
    # Nobody needs the number here; this spares Python the work, and its limit on the length of integers.
    return None


def _reason(error: Exception) -> str:
    """What is wrong and where, without any of the body."""
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_number, parse_float=_number)


def _fitting(value: bytes, limit: int) -> str:
    """Text as it is where the column can hold it, otherwise a hash of it."""
    text = _utf8(value)
    return text if text is not None and len(text) <= limit else f"sha256:{hashlib.sha256(value).hexdigest()}"


def _value(value: bytes) -> str | Mapping[str, str]:
    text = _utf8(value)
    return {"base64": base64.b64encode(value).decode()} if text is None else text


def _utf8(value: bytes) -> str | None:
    """None where PostgreSQL could not hold it as text."""
    try:
        return None if b"\0" in value else value.decode()
    except UnicodeDecodeError:
        return None


def _bytes(text: str) -> bytes:
    # A driver may have decoded what was no text with surrogates in it: so it is bytes again, and no text.
    return text.encode(errors="surrogatepass")


def _short(text: str | None, limit: int) -> str | None:
    """What is too long for its column is left to the headers, which have all of it."""
    return text if text is not None and len(text) <= limit else None


@lru_cache(4096)
def _clean(text: str) -> str:
    """Of types, sources and names of headers, which are mostly those of the message before."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")
