"""The outbox of a jEAP service: messages are written in its transaction, and sent after the commit or by the relay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from pydantic import ValidationError

from outspark.config.settings import DestinationSettings
from outspark.contracts.jeap import enqueue
from outspark.contracts.jeap.table import DEFAULT_TABLE
from outspark.contracts.jeap.trace import Form, columns
from outspark.database.names import TableName
from outspark.errors import SettingsError, TransactionRequired
from outspark.observability import trace_context
from outspark.observability.metrics import Tally
from outspark.outbox import statements
from outspark.outbox.jeap import sqlalchemy_sessions, transactions
from outspark.outbox.jeap.new_message import NewMessage, check
from outspark.outbox.jeap.pending import Pending
from outspark.outbox.jeap.sender import DEFAULT, Sender
from outspark.outbox.jeap.transactions import AsyncTransaction, Transaction
from outspark.outbox.statements import Script, Step

if TYPE_CHECKING:
    from sqlalchemy import orm

    from outspark.outbox.statements import AnyAsyncSession, AnySession, AsyncHandle, Handle

DestinationLike = DestinationSettings | Mapping[str, Any]


class JeapOutbox:
    """One outbox table, as a service sees it. It holds no database connection; threads and tasks may share it.

    `destination` is where messages go that are sent immediately, and `clusters` are more destinations by name;
    `cluster` is the name that this outbox writes into its messages, and a name that is not among `clusters` means
    `destination`. Without destinations, all messages are left to the relay. `trace` is the form in which the trace
    context is sent.

    After the commit the caller waits for `immediate_timeout` at most, and for `immediate_block` if no Kafka broker
    answers at all. Counters go into `tally`.
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
        self._sender = Sender(self.table, destinations, immediate_timeout, immediate_block, self.tally)
        self._cluster, self._trace = cluster, trace
        self._insert = statements.compose(enqueue.insert_sql, self.table)

    def send(self, session: AnySession, *messages: NewMessage) -> list[int]:
        """Write messages in the session's transaction, and send them as soon as that is committed.

        One INSERT, never a commit. Returns the ids of the rows. Messages are sent inside the `commit` that ends the
        transaction, and no error of sending is raised there: what cannot be sent is left to the relay. Outside a
        transaction TransactionRequired is raised.
        """
        found = statements.unwrap(session)
        if not statements.is_session(found):
            how = "`with outbox.transaction(conn) as tx: tx.send(…)`"
            raise _no_commit_seen("send", session, how, "a SQLAlchemy Session")
        return self._write_in_session(found, messages, "send", immediate=True)

    async def send_async(self, session: AnyAsyncSession, *messages: NewMessage) -> list[int]:
        """`send` for SQLAlchemy's AsyncSession; the event loop is not blocked while messages are sent."""
        found = statements.unwrap(session)
        if not statements.is_async_session(found):
            how = "`async with outbox.transaction_async(conn) as tx: await tx.send(…)`"
            raise _no_commit_seen("send_async", session, how, "a SQLAlchemy AsyncSession")
        return await found.run_sync(self.send, *messages)

    def send_scheduled(self, conn: Handle, *messages: NewMessage) -> list[int]:
        """Write messages in the transaction of `conn`, for the relay to send. Returns the ids of the rows.

        Takes a psycopg connection or cursor, or a SQLAlchemy Connection or Session. One INSERT, never a commit.
        Outside a transaction TransactionRequired is raised.
        """
        found = statements.unwrap(conn)
        if statements.is_session(found):
            return self._write_in_session(found, messages, "send_scheduled", immediate=False)
        if statements.is_connection(found):
            sqlalchemy_sessions.require_begun(found, "send_scheduled", "connection")
        return statements.run(conn, "send_scheduled", self._write_unseen(messages, "send_scheduled"))

    async def send_scheduled_async(self, conn: AsyncHandle, *messages: NewMessage) -> list[int]:
        """`send_scheduled` for psycopg's async connection or cursor, or SQLAlchemy's async connection or session."""
        found = statements.unwrap(conn)
        if statements.is_async_session(found) or statements.is_async_connection(found):
            return await found.run_sync(self.send_scheduled, *messages)
        script = self._write_unseen(messages, "send_scheduled_async")
        return await statements.run_async(conn, "send_scheduled", script)

    def transaction(self, conn: psycopg.Connection[Any]) -> AbstractContextManager[Transaction]:
        """A transaction on a psycopg connection that is in none: `with outbox.transaction(conn) as tx: tx.send(…)`.

        It is committed at the end of the `with` block, which sends its messages before it is left. Savepoints inside
        it are made with `conn.transaction()`, as always.
        """
        return transactions.transaction(self._write, conn)

    def transaction_async(
        self, conn: psycopg.AsyncConnection[Any]
    ) -> AbstractAsyncContextManager[AsyncTransaction]:
        """`transaction` on psycopg's AsyncConnection."""
        return transactions.transaction_async(self._write, conn)

    def close(self) -> None:
        """Close the connections to brokers that are not in use; the outbox opens new ones when it needs them."""
        self._sender.close()

    def _write(
        self, messages: Sequence[NewMessage], pending: Pending | None, *, immediate: bool, needs: str = ""
    ) -> Script[list[int]]:
        """Without `pending`, the outbox does not see how the transaction ends."""
        if immediate and not self._sender.can_send:
            raise SettingsError(
                "the outbox has no destination to send to immediately: give it one, or leave messages to the relay "
                "with send_scheduled"
            )
        rows = [check(message, self._cluster) for message in messages]
        trace = columns(trace_context.current().get("traceparent"))
        seconds = self._sender.longest * len(rows) if immediate else None
        answers = yield Step(self._insert, enqueue.insert_params(rows, trace, seconds), needs)
        events = enqueue.events(map(tuple, answers), rows, trace, self._trace)
        if pending is None:
            self._sender.count(len(events), "scheduled", "unknown")
        else:
            pending.add(self._sender, events, immediate=immediate)
        return [int(event.id) for event in events]

    def _write_unseen(self, messages: Sequence[NewMessage], call: str) -> Script[list[int]]:
        return self._write(messages, None, immediate=False, needs=f"{call} needs")

    def _write_in_session(
        self, session: orm.Session, messages: Sequence[NewMessage], call: str, *, immediate: bool
    ) -> list[int]:
        sqlalchemy_sessions.require_begun(session, call, "session")
        connection = session.connection()
        pending = sqlalchemy_sessions.watch(session).pending(connection)
        script = self._write(messages, pending, immediate=immediate, needs=f"{call} needs")
        return statements.run(connection, call, script)


def _destinations(
    default: DestinationLike | None, clusters: Mapping[str, DestinationLike]
) -> dict[str, DestinationSettings]:
    if DEFAULT in clusters:
        raise SettingsError(
            f"clusters: {DEFAULT!r} is the name of `destination`; give the cluster another name"
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
    bare = statements.unwrap(handle)
    if (
        isinstance(bare, psycopg.Connection | psycopg.AsyncConnection)
        or statements.is_connection(bare)
        or statements.is_async_connection(bare)
    ):
        return TransactionRequired(
            f"{call} cannot see when a bare connection commits: with psycopg write {how}, with SQLAlchemy use "
            f"{session}, or leave the message to the relay with send_scheduled"
        )
    return statements.wrong_handle(call, handle, session)
