"""Headers of messages. Messages of a topic mostly have the same header names, so each set of names is parsed once."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring

from outspark.config.inbox import AcceptSettings
from outspark.contracts.omnibox.inbox import KEY_HEADER
from outspark.inbox.intake.encoding import clean, to_bytes, utf8

# A producer that puts ids into header names must not grow the cache without limit.
_MOST_LAYOUTS = 1000

# Prefixes in the CloudEvents bindings: Kafka; NATS and HTTP; the two of AMQP.
_CLOUD_EVENTS = ("ce_", "ce-", "cloudevents_", "cloudevents:")

Columns = tuple[int, ...]
"""Indexes of the headers that may hold a value; the first header that is not empty is used."""


@dataclass(frozen=True, slots=True)
class Layout:
    """For one set of header names: which header holds which value."""

    id: Columns
    cloud_events: Mapping[int, Columns]
    """For each id header of CloudEvents, the headers with its source; only both together identify an event."""
    type: Columns
    source: Columns
    time: Columns
    idempotency: Columns
    correlation: Columns
    causation: Columns
    version: Columns
    trace_parent: Columns
    trace_id: Columns
    stored: tuple[tuple[str, int], ...]
    """Each header's name as the start of a JSON member, and the index of its value."""
    has_more: bool
    """Whether there are other headers of meaning than id, type, source and time."""


@dataclass(slots=True)
class Headers:
    """Header names are case-insensitive; of several headers with one name the last is used, as in Kafka."""

    layout: Layout
    values: Sequence[bytes]

    def raw(self, indexes: Columns) -> bytes | None:
        for index in indexes:
            if value := self.values[index]:
                return value
        return None

    def text(self, indexes: Columns) -> str | None:
        value = self.raw(indexes)
        return None if value is None else utf8(value)

    def event_source(self) -> Columns | None:
        """The headers with the CloudEvent's source; None if the id does not come from a CloudEvents header."""
        for index in self.layout.id:
            if self.values[index]:
                return self.layout.cloud_events.get(index)
        return None

    def stored(self, key: bytes | None) -> str:
        """The headers as a JSON object; a value that is not text becomes `{"base64": "..."}`."""
        values = self.values
        parts = [begin + _json(values[index]) for begin, index in self.layout.stored]
        if key is not None:
            # If there is a header of the same name, jsonb keeps the last member: the key.
            parts.append(_KEY + _json(key))
        return "{" + ", ".join(parts) + "}"


class HeaderReader:
    """Reads headers by the names in the settings, and caches a layout for each set of names."""

    def __init__(self, settings: AcceptSettings) -> None:
        self._settings = settings
        self._layouts: dict[tuple[str, ...], Layout] = {}

    def read(self, given: Iterable[tuple[str, bytes | str | None]]) -> Headers:
        pairs = list(given)
        names, values = zip(*pairs, strict=True) if pairs else ((), ())
        for value in values:
            if type(value) is not bytes:
                names, values = _as_bytes(pairs)
                break
        layout = self._layouts.get(names)
        if layout is None:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[names] = _layout(names, self._settings)
        return Headers(layout, values)


def _as_bytes(
    pairs: Sequence[tuple[str, bytes | str | None]],
) -> tuple[tuple[str, ...], tuple[bytes, ...]]:
    """Names and values as bytes, without headers that have no value."""
    present = [(name, value) for name, value in pairs if value is not None]
    return (
        tuple(name for name, _ in present),
        tuple(value if isinstance(value, bytes) else to_bytes(value) for _, value in present),
    )


def _layout(names: tuple[str, ...], settings: AcceptSettings) -> Layout:
    by_name = {name.lower(): index for index, name in enumerate(names)}
    stored = {clean(name): index for index, name in enumerate(names)}

    def indexes(wanted: tuple[str, ...]) -> Columns:
        return tuple(by_name[name.lower()] for name in wanted if name.lower() in by_name)

    more = {
        "idempotency": indexes(settings.idempotency_headers),
        "correlation": indexes(settings.correlation_headers),
        "causation": indexes(settings.causation_headers),
        "version": indexes(settings.version_headers),
        "trace_parent": indexes(("traceparent",)),
        "trace_id": indexes(("trace_id",)),
    }
    return Layout(
        id=indexes(settings.id_headers),
        cloud_events={
            by_name[f"{prefix}id"]: indexes((f"{prefix}source",))
            for prefix in _CLOUD_EVENTS
            if f"{prefix}id" in by_name
        },
        type=indexes(settings.type_headers),
        source=indexes(settings.source_headers),
        time=indexes(settings.time_headers),
        **more,
        stored=tuple((_begin(name), index) for name, index in stored.items()),
        has_more=any(more.values()),
    )


def _begin(name: str) -> str:
    return f"{encode_basestring(name)}: "


_KEY = _begin(KEY_HEADER)


def _json(value: bytes) -> str:
    text = utf8(value)
    return (
        encode_basestring(text)
        if text is not None
        else json.dumps({"base64": base64.b64encode(value).decode()})
    )
