"""Writes plain events into a jEAP outbox, for the relay to send; `outspark enqueue` uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from outspark.contracts.jeap.settings import SETTINGS
from outspark.contracts.writing import DeadLetter, PlainEvent
from outspark.database.names import TableName
from outspark.errors import EventInvalid, SettingsError
from outspark.outbox.jeap.new_message import NewMessage
from outspark.outbox.jeap.outbox import JeapOutbox
from outspark.outbox.new_event import Limits, check
from outspark.outbox.plain import new_event


class JeapWriter:
    """The type of an event is its topic."""

    def __init__(self, table: TableName) -> None:
        self._table = table
        self._outbox = JeapOutbox(str(table))

    def enqueue(self, conn: psycopg.Connection[Any], events: Sequence[PlainEvent]) -> list[str]:
        return [str(id) for id in self._outbox.send_scheduled(conn, *map(_message, events))]

    def write_dead_letter(self, conn: psycopg.Connection[Any], letter: DeadLetter) -> None:
        raise SettingsError(f"table {self._table} is of contract jeap, {SETTINGS.no_dead_letters}")


def _message(event: PlainEvent) -> NewMessage:
    checked = check(new_event(event), Limits())
    if event.headers or event.delay or event.available_at:
        raise EventInvalid(
            f"event {event.id}: a jEAP outbox has no place for headers, delay and available_at"
        )
    key = None if checked.key is None else checked.key.encode()
    return NewMessage(checked.type, checked.payload, checked.type, key, id=checked.id)
