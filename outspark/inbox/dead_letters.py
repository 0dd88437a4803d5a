"""Letters about events that died in their handlers: a row in a table, or an event in an outbox.

Either is written in the transaction that makes the event dead, so that there is one letter for each death. A letter can
be written whatever the message was like: otherwise its event could never die.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection
from typing import Any

import psycopg
from psycopg import sql

from outspark import contracts
from outspark.config.inbox import InboxSettings
from outspark.config.settings import SourceSettings
from outspark.contracts.omnibox.inbox import KEY_HEADER
from outspark.contracts.writing import DeadLetter, OutboxWriter
from outspark.database.names import TableName
from outspark.errors import EventInvalid, SettingsError
from outspark.inbox.event import InboxEvent
from outspark.inbox.handling.settle import OnDead

log = logging.getLogger(__name__)

CREATE = """\
-- Letters about events of an inbox that died in their handlers
CREATE TABLE IF NOT EXISTS {table} (
  id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  event_id        uuid NOT NULL,
  message_id      text NOT NULL,
  consumer_group  text NOT NULL,
  source          text NOT NULL,
  event_type      text NOT NULL,
  payload         jsonb NOT NULL,
  headers         jsonb NOT NULL,
  error           text NOT NULL,
  died_at         timestamptz NOT NULL
)"""

WRITE = """\
-- Leave a letter about an event that died
INSERT INTO {table}
  (event_id, message_id, consumer_group, source, event_type, payload, headers, error, died_at)
VALUES (%(event_id)s, %(message_id)s, %(consumer_group)s, %(source)s, %(event_type)s,
        %(payload)s::jsonb, %(headers)s::jsonb, %(error)s, clock_timestamp())"""

PREFIX = "x-dead-"
HEADERS = {
    f"{PREFIX}error": "error",
    f"{PREFIX}group": "consumer_group",
    f"{PREFIX}source": "source",
    f"{PREFIX}message": "message_id",
}

_MAX_KEY = 255
_NO_LINE = re.compile(r"[\r\n\0]+")


def statements(table: TableName) -> list[str]:
    """The DDL of a table of letters, in the order to run it."""
    return [sql.SQL(CREATE).format(table=table.identifier).as_string(None)]


def writer(inbox: InboxSettings, outbox: SourceSettings | None) -> OnDead | None:
    """What writes them; None where none are wanted. `outbox` is the one that the settings name."""
    settings = inbox.dead_letter
    if settings is None:
        return None
    if settings.table is not None:
        return _into_table(TableName.parse(settings.table))
    assert outbox is not None
    assert settings.topic is not None
    contract = contracts.get(outbox.contract)
    if reason := contract.settings.no_dead_letters:
        raise SettingsError(
            f"dead letters cannot go through table {outbox.table}: it is of contract {outbox.contract}, {reason}"
        )
    named = {name.lower() for name in (*inbox.id_headers, *inbox.idempotency_headers)}
    return _into_outbox(contract.outbox_writer(TableName.parse(outbox.table)), settings.topic, named)


def _into_table(table: TableName) -> OnDead:
    statement = sql.SQL(WRITE).format(table=table.identifier)

    def write(conn: psycopg.Connection[Any], event: InboxEvent, error: str) -> None:
        conn.execute(statement, {**_letter(event, error), "payload": event.body})

    return write


def _into_outbox(outbox: OutboxWriter, topic: str, naming: Collection[str]) -> OnDead:
    """A letter with the message's body and headers; with neither, where the outbox cannot hold them."""

    def write(conn: psycopg.Connection[Any], event: InboxEvent, error: str) -> None:
        ours = {header: _line(_letter(event, error)[field]) for header, field in HEADERS.items()}

        def send(body: str, headers: dict[str, str]) -> None:
            letter = DeadLetter(event.id, event.type, topic, _key(event), body, headers)
            outbox.write_dead_letter(conn, letter)

        try:
            send(event.body, {**_kept(event, naming), **ours})
        except EventInvalid as refusal:
            extra = {"group": event.group, "event": event.id, "error": str(refusal)}
            log.warning(
                "dead letter written without payload and headers: the outbox rejected them", extra=extra
            )
            send(json.dumps({"event_id": event.id}), ours)

    return write


def _key(event: InboxEvent) -> str:
    """Letters of one key stay in order; those of messages without one need none."""
    key = event.key or ""
    return key if key.strip() and len(key) <= _MAX_KEY else event.id


def _letter(event: InboxEvent, error: str) -> dict[str, str]:
    return {
        "event_id": event.id,
        "message_id": event.message_id,
        "consumer_group": event.group,
        "source": event.source,
        "event_type": event.type,
        "headers": json.dumps(event.headers),
        "error": error,
    }


def _kept(event: InboxEvent, naming: Collection[str]) -> dict[str, str]:
    """The message's headers as text. Those that name the message get a prefix: the letter is another message, and an
    inbox for letters must not take those of two groups for one."""
    kept = {}
    for name, value in event.headers.items():
        if name != KEY_HEADER:
            text = value if isinstance(value, str) else json.dumps(value)
            kept[f"{PREFIX}{name}" if name.lower() in naming else name] = _line(text)
    return kept


def _line(text: str) -> str:
    return _NO_LINE.sub(" ", text)
