"""Envelopes wrap the payload of an event in the format that a destination needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never
from urllib.parse import quote

from outspark.config.settings import DestinationSettings
from outspark.delivery.envelopes import cloudevents, omnibox
from outspark.event import Event, Message

__all__ = ["Envelope", "make_envelope"]

Envelope = Callable[[Event, Message], Message]
"""Takes an event and the message routed from it, and returns a new message with its payload wrapped.

EventInvalid when this event cannot be wrapped."""


def make_envelope(settings: DestinationSettings, source: str) -> Envelope | None:
    """The envelope for events of `source` to this destination; None if payloads are sent as they are."""
    uri = settings.envelope_source or f"/outspark/{quote(source, safe='')}"
    content_type, version = settings.envelope_content_type, settings.envelope_schema_version
    match settings.envelope:
        case "raw":
            return None
        case "cloudevents-binary":
            return cloudevents.Binary(uri, content_type, cloudevents.binding(settings.type))
        case "cloudevents-structured":
            return cloudevents.Structured(uri, content_type)
        case "schema-versioned":
            return omnibox.SchemaVersioned(version)
        case "full":
            return omnibox.Full(version or omnibox.DEFAULT_SCHEMA_VERSION)
        case unknown:
            assert_never(unknown)
