"""omni-box's envelopes. Their fields come from columns of the table, or from headers of the same names.

The headers `event_id` and `event_type` are set as by omni-box's own relay, because its consumers read them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC
from typing import Final

from outspark.delivery.envelopes import embedding
from outspark.errors import EventInvalid
from outspark.event import Event, Message
from outspark.headers import with_content_type

DEFAULT_SCHEMA_VERSION: Final = "1.0.0"

_WHEN_PRESENT = ("trace_id", "correlation_id", "causation_id")


@dataclass(frozen=True, slots=True)
class SchemaVersioned:
    """Schema version and payload. Without a version in the event it is the configured one, or null."""

    schema_version: str | None

    def __call__(self, event: Event, message: Message) -> Message:
        version = message.headers.get("schema_version") or self.schema_version
        return _wrapped(event, message, {"schema_version": version})


@dataclass(frozen=True, slots=True)
class Full:
    """All fields that describe the event, and its payload."""

    schema_version: str

    def __call__(self, event: Event, message: Message) -> Message:
        headers = message.headers
        of_type, of_id = event.aggregate or (headers.get("aggregate_type"), headers.get("aggregate_id"))
        fields: dict[str, str | None] = {
            "schema_version": headers.get("schema_version") or self.schema_version,
            "event_type": event.type,
            "aggregate_type": _needed("aggregate_type", of_type),
            "aggregate_id": _needed("aggregate_id", of_id or message.key),
            "timestamp": event.created_at.astimezone(UTC).isoformat(),
        }
        fields |= {name: headers[name] for name in _WHEN_PRESENT if headers.get(name)}
        return _wrapped(event, message, fields)


def _needed(field: str, value: str | None) -> str:
    if not value:
        instead = " and no key to use instead" if field == "aggregate_id" else ""
        raise EventInvalid(f"the full envelope needs the header {field!r}, and the event has none{instead}")
    return value


def _wrapped(event: Event, message: Message, fields: dict[str, str | None]) -> Message:
    if not embedding.is_json(message.payload):
        raise EventInvalid("the payload is not JSON in UTF-8, and the envelope cannot contain anything else")
    headers = {**message.headers, "event_id": message.id, "event_type": event.type}
    return replace(
        message,
        payload=embedding.embed(fields, "payload", message.payload),
        headers=with_content_type(headers, "application/json"),
    )
