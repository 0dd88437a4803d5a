"""jEAP's own way to relay, as a yardstick: one client selects five messages at a time, sends each by itself, awaits
its answer, and marks it in a transaction of its own.

With the same Kafka client as the lanes, and without what else the original does: an object mapper, metrics, and a
lock, which the original acquires once a run.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import psycopg
from psycopg import sql

from outspark.brokers import Publisher, open_publisher
from outspark.config.settings import DestinationSettings
from outspark.database.names import TableName
from outspark.errors import OutsparkError
from outspark.event import Message
from outspark.headers import NO_HEADERS
from outspark.outcome import Delivered
from outspark.tools.bench.backlog import Connection
from outspark.tools.bench.clients import Clients

BATCH = 5
TIMEOUT = 60.0

SCAN = """
-- The next messages that are ready, in the order of their ids
SELECT id, topic, "key", message FROM {table}
WHERE resend OR (
  sent_immediately IS NULL AND sent_scheduled IS NULL AND failed IS NULL
  AND (NOT send_immediately OR send_immediately AND CURRENT_TIMESTAMP > schedule_after))
ORDER BY id LIMIT {limit}"""

MARK = """
-- One message was sent
UPDATE {table} SET sent_scheduled = clock_timestamp(), failed = NULL, resend = false WHERE id = %s"""


@dataclass(slots=True)
class Serial(Clients):
    """A single client."""

    url: str
    table: TableName
    destination: Mapping[str, Any]
    _open: ExitStack = field(default_factory=ExitStack)
    _work: tuple[Connection, Publisher] = field(init=False)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        conn = psycopg.connect(self.url, autocommit=True, application_name="outspark bench")
        self._open.enter_context(conn)
        publisher = open_publisher("bench", DestinationSettings.model_validate(self.destination))
        self._open.callback(publisher.close)
        self._work = conn, publisher
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self.join()
        self._open.close()

    def go(self) -> None:
        self.start([partial(self._drain, *self._work)])

    def _drain(self, conn: Connection, publisher: Publisher) -> None:
        table = self.table.identifier
        scan = sql.SQL(SCAN).format(table=table, limit=sql.Literal(BATCH))
        mark = sql.SQL(MARK).format(table=table)
        while not self._ended.is_set() and (rows := conn.execute(scan).fetchall()):
            for id, topic, key, payload in rows:
                self._send(publisher, Message(str(id), topic, key.decode(), payload, NO_HEADERS))
                conn.execute(mark, [id])

    def _send(self, publisher: Publisher, message: Message) -> None:
        [outcome] = publisher.publish([message], TIMEOUT)
        if not isinstance(outcome, Delivered):
            raise OutsparkError(f"message {message.id} was not sent: {outcome}")
