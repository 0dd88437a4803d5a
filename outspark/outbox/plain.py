"""Writes plain events and dead letters into an Open Outbox table; `outspark enqueue` and inboxes use it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import psycopg

from outspark.contracts.writing import DeadLetter, PlainEvent
from outspark.database.names import TableName
from outspark.outbox.new_event import Limits, NewEvent
from outspark.outbox.openoutbox import Outbox

NO_LIMITS: Final = Limits(payload=sys.maxsize, headers=sys.maxsize, key=sys.maxsize)
"""For dead letters: a row can hold whatever was small enough for the broker that it came from."""


def new_event(event: PlainEvent) -> NewEvent:
    return NewEvent(
        event.type, event.payload, event.key, event.headers, event.id, event.available_at, event.delay
    )


class OpenOutboxWriter:
    """A dead letter is an event whose type is the topic."""

    def __init__(self, table: TableName) -> None:
        self._outbox = Outbox(str(table))
        self._letters = Outbox(str(table), limits=NO_LIMITS)

    def enqueue(self, conn: psycopg.Connection[Any], events: Sequence[PlainEvent]) -> list[str]:
        return [str(id) for id in self._outbox.enqueue(conn, *map(new_event, events))]

    def write_dead_letter(self, conn: psycopg.Connection[Any], letter: DeadLetter) -> None:
        event = NewEvent(letter.topic, letter.body.encode(), letter.key, letter.headers)
        self._letters.enqueue(conn, event)
