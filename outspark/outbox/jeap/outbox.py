"""The outbox of a jEAP service: messages are written in its transaction, and sent after the commit or by the relay."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from pydantic import ValidationError

from outspark.config.settings import DestinationSettings
from outspark.contracts.jeap.table import DEFAULT_TABLE
from outspark.contracts.jeap.trace import Form
from outspark.database.names import TableName
from outspark.errors import SettingsError, TransactionRequired
from outspark.observability.metrics import Tally
from outspark.outbox import handles
from outspark.outbox.jeap import sqlalchemy_sessions, transactions
from outspark.outbox.jeap.new_message import NewMessage
from outspark.outbox.jeap.sender import DEFAULT, Sender
from outspark.outbox.jeap.transactions import AsyncTransaction, Transaction
from outspark.outbox.jeap.writer import PreparedInsert, Writer

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy import orm
    from sqlalchemy.ext import asyncio as aio

    AnySession = orm.Session | orm.scoped_session[Any]
    AnyAsyncSession = aio.AsyncSession | aio.async_scoped_session[Any]
    Handle = psycopg.Connection[Any] | sqlalchemy.Connection | AnySession
    AsyncHandle = psycopg.AsyncConnection[Any] | aio.AsyncConnection | AnyAsyncSession

DestinationLike = DestinationSettings | Mapping[str, Any]


class JeapOutbox:
    """One outbox table, as a service sees it. Holds no database connection, and may be shared by threads and tasks.

    `destination` is where messages go that are sent at once, and `clusters` more of them by name; `cluster` is the
    name that this outbox writes into its messages, and one that is not among `clusters` means `destination`. Without
    any, all messages are left to the relay. `trace` is the form in which the trace context goes out.

    After the commit the caller is held for `immediate_timeout` at most, and for `immediate_block` where no broker of
    Kafka answers at all. Counters go into `tally`.
    """

    def __init__(
        self,
        table: str = str(DEFAULT_TABLE),
        *,
        destination: DestinationLike | None = None,
        clusters: Mapping[str, DestinationLike] | None = None,
        cluster: str | None = None,
        trace: Form = "w3c",
        immediate_timeout: timedelta = timedelta(seconds=15),
        immediate_block: timedelta = timedelta(seconds=5),
        tally: Tally | None = None,
    ) -> None:
        self.table = TableName.parse(table)
        self.tally = tally or Tally()
        destinations = _destinations(destination, clusters or {})
        sender = Sender(self.table, destinations, immediate_timeout, immediate_block, self.tally)
        self._writer = Writer(self.table, cluster, trace, sender)

    def send(self, session: AnySession, *messages: NewMessage) -> list[int]:
        """Write messages in the session's transaction, and send them as soon as that is committed.

        One INSERT, never a commit. Answers the ids of the rows. Sending happens inside the `commit` that ends the
        transaction, and nothing that goes wrong there is raised: what cannot be sent is left to the relay. Outside a
        transaction TransactionRequired is raised.
        """
        found = handles.as_session(session)
        if found is None:
            how = "`with outbox.transaction(conn) as tx: tx.send(…)`"
            raise _no_commit_seen("send", session, how, "a SQLAlchemy Session")
        return self._post(found, messages, "send", immediate=True)

    async def send_async(self, session: AnyAsyncSession, *messages: NewMessage) -> list[int]:
        """`send` for SQLAlchemy's AsyncSession; the event loop goes on while messages are sent."""
        found = handles.as_async_session(session)
        if found is None:
            how = "`async with outbox.transaction_async(conn) as tx: await tx.send(…)`"
            raise _no_commit_seen("send_async", session, how, "a SQLAlchemy AsyncSession")
        return await found.run_sync(self.send, *messages)

    def send_scheduled(self, conn: Handle, *messages: NewMessage) -> list[int]:
        """Write messages in the transaction of `conn`, for the relay to send. Answers the ids of the rows.

        Takes a psycopg connection, or a SQLAlchemy Connection or Session. One INSERT, never a commit. Outside a
        transaction TransactionRequired is raised.
        """
        if (session := handles.as_session(conn)) is not None:
            return self._post(session, messages, "send_scheduled", immediate=False)
        prepared = self._writer.write(messages, immediate=False)
        if isinstance(conn, psycopg.Connection):
            transactions.require_transaction(conn, "send_scheduled")
            return self._posted_unseen(prepared, transactions.execute(conn, prepared.step))
        if (connection := handles.as_connection(conn)) is not None:
            sqlalchemy_sessions.require_transaction(connection, "send_scheduled")
            return self._posted_unseen(prepared, sqlalchemy_sessions.execute(connection, prepared.step))
        raise _wrong_handle("send_scheduled", conn, "a psycopg or SQLAlchemy Connection, or a Session")

    async def send_scheduled_async(self, conn: AsyncHandle, *messages: NewMessage) -> list[int]:
        """`send_scheduled` for psycopg's AsyncConnection, or SQLAlchemy's AsyncConnection or AsyncSession."""
        if isinstance(conn, psycopg.AsyncConnection):
            transactions.require_transaction(conn, "send_scheduled_async")
            prepared = self._writer.write(messages, immediate=False)
            return self._posted_unseen(prepared, await transactions.execute_async(conn, prepared.step))
        found = handles.as_async_session(conn) or handles.as_async_connection(conn)
        if found is None:
            raise _wrong_handle("send_scheduled_async", conn, "an AsyncConnection or an AsyncSession")
        return await found.run_sync(self.send_scheduled, *messages)

    def transaction(self, conn: psycopg.Connection[Any]) -> AbstractContextManager[Transaction]:
        """A transaction on a psycopg connection that is in none: `with outbox.transaction(conn) as tx: tx.send(…)`.

        It is committed at the end, and then what was sent in it goes out, before the `with` is left. Savepoints are
        made inside it with `conn.transaction()` as ever.
        """
        return transactions.transaction(self._writer, conn)

    def transaction_async(
        self, conn: psycopg.AsyncConnection[Any]
    ) -> AbstractAsyncContextManager[AsyncTransaction]:
        """`transaction` on psycopg's AsyncConnection."""
        return transactions.transaction_async(self._writer, conn)

    def close(self) -> None:
        """Let go of the connections to brokers that are not in use; the outbox opens new ones when it needs them."""
        self._writer.sender.close()

    def _post(
        self, session: orm.Session, messages: tuple[NewMessage, ...], call: str, *, immediate: bool
    ) -> list[int]:
        prepared = self._writer.write(messages, immediate=immediate)
        connection = sqlalchemy_sessions.open_connection(session, call)
        events = prepared.events(sqlalchemy_sessions.execute(connection, prepared.step))
        sqlalchemy_sessions.watch(session).add(connection, self._writer.sender, events, immediate=immediate)
        return [int(event.id) for event in events]

    def _posted_unseen(self, prepared: PreparedInsert, answers: list[Any]) -> list[int]:
        """Of a bare connection nobody is told how its transaction ends."""
        events = prepared.events(answers)
        self._writer.sender.count(len(events), "scheduled", "unknown")
        return [int(event.id) for event in events]


def _destinations(
    default: DestinationLike | None, clusters: Mapping[str, DestinationLike]
) -> dict[str, DestinationSettings]:
    if DEFAULT in clusters:
        raise SettingsError(
            f"clusters: {DEFAULT!r} is what `destination` is called; name the cluster otherwise"
        )
    if default is None and clusters:
        raise SettingsError("clusters need a `destination` too: messages of other clusters go there")
    given = {} if default is None else {DEFAULT: default, **clusters}
    return {name: _settings(name, destination) for name, destination in given.items()}


def _settings(name: str, given: DestinationLike) -> DestinationSettings:
    if isinstance(given, DestinationSettings):
        return given
    try:
        return DestinationSettings.model_validate(given)
    except ValidationError as error:
        faults = "; ".join(
            f"{fault['loc'][0]}: {fault['msg']}" for fault in error.errors(include_input=False)
        )
        # `from None`: the original text quotes its input, passwords included.
        raise SettingsError(f"destination {name}: {faults}") from None


def _no_commit_seen(call: str, handle: object, how: str, session: str) -> TransactionRequired | TypeError:
    if isinstance(handle, psycopg.Connection | psycopg.AsyncConnection):
        return TransactionRequired(
            f"{call} cannot see when a bare psycopg connection commits: write {how}, or leave the message to the "
            "relay with send_scheduled"
        )
    if handles.as_connection(handle) or handles.as_async_connection(handle):
        return TransactionRequired(
            f"{call} cannot see when a SQLAlchemy connection commits: use {session}, or leave the message to the "
            "relay with send_scheduled"
        )
    return _wrong_handle(call, handle, session)


def _wrong_handle(call: str, handle: object, allowed: str) -> TypeError:
    kind = type(handle)
    return TypeError(f"{call} cannot write through {kind.__module__}.{kind.__qualname__}; it takes {allowed}")
