"""CloudEvents 1.0: binary mode has the attributes in headers, structured mode has everything in one JSON document.

In binary mode the header names follow the protocol bindings for Kafka, NATS, AMQP and HTTP.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Final
from urllib.parse import quote

from outspark.config.brokers import DestinationType
from outspark.delivery.envelopes import embedding
from outspark.errors import EventInvalid
from outspark.event import Event, Message
from outspark.headers import (
    CONTENT_TYPE,
    content_type_of,
    is_json_type,
    with_content_type,
    without_content_type,
)

STRUCTURED_TYPE: Final = "application/cloudevents+json; charset=UTF-8"

_OWN_PREFIXES = ("ce_", "ce-")
_NAME = re.compile(r"[a-z0-9]+")
_NONCHARACTERS = "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
_FORBIDDEN = re.compile(rf"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_NONCHARACTERS}]")
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F))).translate({ord('"'): None, ord("%"): None})


@dataclass(frozen=True, slots=True)
class Binding:
    """How a protocol writes attributes as headers."""

    prefix: str
    escaped: bool = False
    """Values are percent-encoded, because the protocol's headers are ASCII."""
    names_content_type: bool = False
    """`datacontenttype` is also sent as an attribute, besides the protocol's own content type."""


_BINDINGS: dict[DestinationType, Binding] = {
    "kafka": Binding("ce_"),
    "nats": Binding("ce-", escaped=True, names_content_type=True),
    # The AMQP binding recommends the underscore over the older "cloudEvents:", which JMS does not allow.
    "rabbitmq": Binding("cloudEvents_"),
    "http": Binding("ce-", escaped=True),
}


def binding(type: DestinationType) -> Binding:
    return _BINDINGS.get(type, Binding("ce-"))


@dataclass(frozen=True, slots=True)
class Binary:
    source: str
    content_type: str | None
    binding: Binding

    def __call__(self, event: Event, message: Message) -> Message:
        attributes = _attributes(event, message, self.source)
        kind = attributes.pop("datacontenttype", None) or self.content_type
        headers = _plain_headers(message)
        if kind is not None:
            headers[CONTENT_TYPE] = kind
            if self.binding.names_content_type:
                attributes["datacontenttype"] = kind
        for name, value in attributes.items():
            headers[self.binding.prefix + name] = _escape(value) if self.binding.escaped else value
        return replace(message, headers=headers)


@dataclass(frozen=True, slots=True)
class Structured:
    source: str
    content_type: str | None

    def __call__(self, event: Event, message: Message) -> Message:
        attributes = _attributes(event, message, self.source)
        kind = attributes.pop("datacontenttype", None) or self.content_type
        headers = with_content_type(_plain_headers(message), STRUCTURED_TYPE)
        document = _document(attributes, kind, message.payload)
        return replace(message, payload=document, headers=headers)


def _document(attributes: dict[str, str], kind: str | None, payload: bytes) -> bytes:
    """A payload that is declared as JSON but is not valid is sent as base64, too: the event is delivered unchanged."""
    if (kind is None or is_json_type(kind)) and embedding.is_json(payload):
        attributes["datacontenttype"] = kind or "application/json"
        return embedding.embed(attributes, "data", payload)
    if kind is not None:
        attributes["datacontenttype"] = kind
    return embedding.embed(attributes, "data_base64", b'"%s"' % base64.b64encode(payload))


def _attributes(event: Event, message: Message, source: str) -> dict[str, str]:
    """All attributes, checked. Headers of the event cannot override id, source, type and time."""
    own = {
        "specversion": "1.0",
        "id": message.id,
        "source": source,
        "type": event.type,
        "time": event.created_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
    }
    attributes = {**own, **_extensions(message), **_given(message.headers), **own}
    for name, value in attributes.items():
        if not value:
            raise EventInvalid(f"CloudEvents attribute {name!r} is empty")
        if _FORBIDDEN.search(value):
            raise EventInvalid(
                f"CloudEvents attribute {name!r} contains a character that the standard forbids"
            )
    return attributes


def _extensions(message: Message) -> dict[str, str]:
    headers = message.headers
    extensions = {"partitionkey": message.key} if message.key else {}
    if kind := content_type_of(headers):
        extensions["datacontenttype"] = kind
    if "traceparent" in headers:
        extensions["traceparent"] = headers["traceparent"]
        if headers.get("tracestate"):
            extensions["tracestate"] = headers["tracestate"]
    return extensions


def _given(headers: Mapping[str, str]) -> dict[str, str]:
    """Attributes from the event's headers: `ce_subject` or `ce-subject` becomes the attribute `subject`."""
    given = {name[3:].lower(): value for name, value in headers.items() if _is_attribute(name)}
    for name in given:
        if name == "data" or not _NAME.fullmatch(name):
            raise EventInvalid(
                f"header 'ce_{name}' is not a CloudEvents attribute: letters and digits only, and not 'data'"
            )
    return given


def _plain_headers(message: Message) -> dict[str, str]:
    return {
        name: value
        for name, value in without_content_type(message.headers).items()
        if not _is_attribute(name)
    }


def _is_attribute(header: str) -> bool:
    return header[:3].lower() in _OWN_PREFIXES


def _escape(value: str) -> str:
    """`Euro € 😀` becomes `Euro%20%E2%82%AC%20%F0%9F%98%80`."""
    return quote(value, safe=_PRINTABLE)
