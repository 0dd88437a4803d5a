"""Entries go into a ledger row by row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from outspark.contracts.writing import DeadLetter, PlainEvent
from outspark.database.names import TableName
from outspark.errors import EventInvalid

INSERT = """
-- Enter what is not there yet
INSERT INTO {table} (no, kind, account, body, notes)
VALUES (%(no)s, %(kind)s, %(account)s, %(body)s, %(notes)s::jsonb) ON CONFLICT (no) DO NOTHING"""


class LedgerWriter:
    def __init__(self, table: TableName) -> None:
        self._insert = sql.SQL(INSERT).format(table=table.identifier)

    def enqueue(self, conn: psycopg.Connection[Any], events: Sequence[PlainEvent]) -> list[str]:
        return [str(event.id) for event in events if self._write(conn, event)]

    def write_dead_letter(self, conn: psycopg.Connection[Any], letter: DeadLetter) -> None:
        note = {**letter.headers, "topic": letter.topic}
        self._write(conn, PlainEvent("inbox.died", letter.body, letter.key, note))

    def _write(self, conn: psycopg.Connection[Any], event: PlainEvent) -> bool:
        if not isinstance(event.payload, str):
            raise EventInvalid(f"event {event.id}: an entry is text")
        parameters = {
            "no": event.id,
            "kind": event.type,
            "account": event.key,
            "body": event.payload.encode(),
            "notes": json.dumps(dict(event.headers)),
        }
        return conn.execute(self._insert, parameters).rowcount == 1
