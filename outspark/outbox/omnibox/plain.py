"""Writes plain events and dead letters into an omni-box outbox; `outspark enqueue` and inboxes use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg

from outspark.contracts.writing import DeadLetter, PlainEvent
from outspark.database.names import TableName
from outspark.errors import EventInvalid
from outspark.outbox.omnibox.new_event import DEFAULT_MAX_ATTEMPTS, NewOutboxEvent
from outspark.outbox.omnibox.outbox import OmniboxOutbox
from outspark.outbox.plain import NO_LIMITS

COLUMNS = (
    "topic",
    "aggregate_type",
    "aggregate_id",
    "idempotency_key",
    "correlation_id",
    "causation_id",
    "trace_id",
    "schema_version",
    "max_attempts",
)
"""A header of this name goes into the column of this name."""


class OmniboxWriter:
    def __init__(self, table: TableName) -> None:
        self._outbox = OmniboxOutbox(str(table))
        self._letters = OmniboxOutbox(str(table), limits=NO_LIMITS)

    def enqueue(self, conn: psycopg.Connection[Any], events: Sequence[PlainEvent]) -> list[str]:
        return [str(one.id) for one in self._outbox.enqueue(conn, *map(_event, events)) if one.new]

    def write_dead_letter(self, conn: psycopg.Connection[Any], letter: DeadLetter) -> None:
        self._letters.enqueue(
            conn,
            NewOutboxEvent(
                type=letter.event_type if letter.event_type.strip() else "inbox_event",
                topic=letter.topic,
                aggregate_type="inbox_event",
                aggregate_id=UUID(letter.event_id),
                key=letter.key,
                payload=letter.body,
                headers=letter.headers,
            ),
        )


def _event(event: PlainEvent) -> NewOutboxEvent:
    headers = dict(event.headers)
    columns: dict[str, Any] = {name: headers.pop(name) for name in COLUMNS if name in headers}
    aggregate_id = columns.pop("aggregate_id", event.key)
    try:
        columns["aggregate_id"] = UUID(aggregate_id)
        columns["max_attempts"] = int(columns.get("max_attempts", DEFAULT_MAX_ATTEMPTS))
    except (TypeError, ValueError) as error:
        raise EventInvalid(
            f"event {event.id}: an omni-box outbox needs the header aggregate_id, a UUID, or a key that is one, and "
            "max_attempts is a whole number"
        ) from error
    return NewOutboxEvent(
        type=event.type,
        payload=event.payload,
        key=event.key,
        headers=headers,
        id=event.id,
        scheduled_at=event.available_at,
        delay=event.delay,
        **{"topic": event.type, "aggregate_type": event.type.partition(".")[0], **columns},
    )
