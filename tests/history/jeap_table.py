"""A jEAP outbox in a history: some messages are the relay's to send, others are sent at once by the service itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, ClassVar
from uuid import uuid4

import psycopg
import pytest

from outspark.config.settings import DestinationSettings
from outspark.contracts.jeap.table import ddl
from outspark.event import Message
from outspark.outbox.jeap import JeapOutbox, NewMessage, sender
from outspark.outcome import HELD, Outcome
from tests.history.history import Written
from tests.history.passing import open_journal_publisher
from tests.history.publisher import Conduct
from tests.history.tables import Draft, Table, Transaction

SEND_TIMEOUT, SEND_BLOCK = timedelta(seconds=2), timedelta(seconds=1)


class Service:
    """Publishes what the service sends at once, in the test's own process. While it is `away`, it sends nothing: as
    if it had died between its commit and the sending."""

    def __init__(self, name: str, conduct: Conduct) -> None:
        self._publisher = open_journal_publisher(name, conduct)
        self.keeps_order = self._publisher.keeps_order
        self.away = False
        self.meanwhile: Callable[[], None] | None = None
        """What happens just before the next sending."""

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        if self.away:
            return [HELD] * len(messages)
        if meanwhile := self.meanwhile:
            self.meanwhile = None
            meanwhile()
        self._publisher.begin_batch()
        first = [dataclasses.replace(message, headers={"attempts": "0"}) for message in messages]
        return self._publisher.publish(first, timeout)

    def check(self, timeout: float) -> None:
        self._publisher.check(timeout)

    def close(self) -> None:
        self._publisher.close()


class JeapTransaction(Transaction):
    def __init__(self, conn: psycopg.Connection[Any], table: JeapTable) -> None:
        super().__init__(conn)
        self._table = table
        self._stack = ExitStack()
        self._outbox = self._stack.enter_context(table.outbox.transaction(conn))
        self._away = False

    def _write(self, drafts: list[Draft]) -> list[Written]:
        self._away |= any(draft.abandoned for draft in drafts)
        return [self._send(draft) for draft in drafts]

    def commit(self) -> None:
        with self._table.service_is(away=self._away):
            self._stack.close()

    def roll_back(self) -> None:
        self._stack.__exit__(psycopg.Rollback, psycopg.Rollback(), None)

    def _send(self, draft: Draft) -> Written:
        assert draft.delay is None, "a jEAP outbox knows no delay"
        id = uuid4()
        key = None if draft.key is None else draft.key.encode()
        message = NewMessage(draft.type, draft.behaviour.payload, "Played", key, id=id)
        send = self._outbox.send if draft.immediate else self._outbox.send_scheduled
        (number,) = send(message)
        query = "SELECT created FROM deferred_message WHERE id = %s"
        ((created,),) = self.conn.execute(query, [number]).fetchall()
        return Written(id, _order_key(draft), created, draft.behaviour, number=number)


def _order_key(draft: Draft) -> str | None:
    """What is sent at once is in no order with the rest; what has no key is in order with its topic."""
    if draft.immediate:
        return None
    return f"/{draft.type}" if draft.key is None else draft.key


class JeapTable(Table):
    # Longer than a publish may take, of course; all relays here are of one run, or let go of it when they stop.
    source: ClassVar[Mapping[str, Any]] = {"contract": "jeap", "jeap": {"lock_at_most": "15s"}}
    counts_failures = False
    unfinished = """\
-- What is neither sent nor failed, or is to be sent again
SELECT count(*) FROM deferred_message
WHERE resend OR (sent_immediately IS NULL AND sent_scheduled IS NULL AND failed IS NULL)"""
    rows = """\
-- The states of another contract, for the same checker; attempts are deaths of lanes
SELECT d.message_id::uuid, CASE WHEN d.resend THEN 'PENDING'
    WHEN d.sent_immediately IS NOT NULL OR d.sent_scheduled IS NOT NULL THEN 'DELIVERED'
    WHEN d.failed IS NOT NULL THEN 'DEAD' ELSE 'PENDING' END,
  coalesce(a.attempts, 0), NULL
FROM deferred_message d LEFT JOIN outspark_attempts a ON a.event_id = d.id::text"""

    def __init__(self, conduct: Conduct) -> None:
        super().__init__(conduct)
        self._services: list[Service] = []
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(sender, "open_publisher", self._open_service)
        self.outbox = JeapOutbox(
            destination=conduct.address.settings if conduct.address else {"type": "null"},
            immediate_timeout=SEND_TIMEOUT,
            immediate_block=SEND_BLOCK,
        )

    def create(self, conn: psycopg.Connection[Any]) -> None:
        conn.execute(ddl())

    def begin(self, conn: psycopg.Connection[Any]) -> Transaction:
        return JeapTransaction(conn, self)

    @contextmanager
    def service_is(self, away: bool) -> Iterator[None]:
        for service in self._services:
            service.away = away
        yield
        for service in self._services:
            service.away = False

    def before_sending(self, happens: Callable[[], None]) -> None:
        """What is to happen when the service has committed and not yet sent, the next time."""
        for service in self._services:
            service.meanwhile = happens

    def close(self) -> None:
        self.outbox.close()
        self._patch.undo()

    def _open_service(self, name: str, settings: DestinationSettings) -> Service:
        """The outbox's own way to a broker, with the journal in between."""
        conduct, address = self._conduct, self._conduct.address
        if address is not None:
            conduct = dataclasses.replace(conduct, address=dataclasses.replace(address, settings=settings))
        service = Service(f"service.{len(self._services)}", conduct)
        self._services.append(service)
        return service
