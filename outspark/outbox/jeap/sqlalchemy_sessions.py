"""SQLAlchemy's side: a session's own events say when its messages are held, counted, sent and marked."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from outspark.errors import TransactionRequired
from outspark.event import Event
from outspark.outbox.jeap.pending import Pending, note
from outspark.outbox.jeap.sender import Sender, TxStatus
from outspark.outbox.jeap.statements import Step

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy import orm

log = logging.getLogger(__name__)

_WATCH = "outspark.outbox.jeap"


class Watch:
    """What a session has put into outboxes, over one transaction after the other.

    Events fire for savepoints too; only the outermost transaction counts. Sending waits until that has ended, because
    then its connection is back in the pool.
    """

    def __init__(self) -> None:
        self._pending = Pending()
        self._connection: sqlalchemy.Connection | None = None
        self._status: TxStatus = "rolled_back"

    def add(
        self, connection: sqlalchemy.Connection, sender: Sender, events: list[Event], *, immediate: bool
    ) -> None:
        self._connection = connection
        self._pending.add(sender, events, immediate=immediate)

    def before_commit(self, session: orm.Session) -> None:
        if self._connection is not None and not session.in_nested_transaction():
            self._status = "unknown"
            for writes, step in self._pending.holds():
                writes.keep(run(self._connection, step))

    def after_commit(self, session: orm.Session) -> None:
        if self._connection is not None and not session.in_nested_transaction():
            # A session may have joined a transaction that is not its own, and that may yet go either way.
            self._status = "unknown" if self._connection.in_transaction() else "committed"

    def after_rollback(self, session: orm.Session) -> None:
        if self._connection is not None and not session.in_nested_transaction():
            # Where the connection was lost during COMMIT, nobody knows.
            lost = self._status == "unknown" and self._connection.invalidated
            self._status = "unknown" if lost else "rolled_back"

    def after_transaction_end(self, session: orm.Session, transaction: orm.SessionTransaction) -> None:
        if self._connection is None or transaction.parent is not None:
            return
        pending, connection, status = self._pending, self._connection, self._status
        self._pending, self._connection, self._status = Pending(), None, "rolled_back"
        pending.count(status)
        if status == "committed" and pending.holds_any:
            _deliver(pending, connection)


def watch(session: orm.Session) -> Watch:
    found: Watch | None = session.info.get(_WATCH)
    if found is None:
        from sqlalchemy import event

        found = session.info[_WATCH] = Watch()
        for name in ("before_commit", "after_commit", "after_rollback", "after_transaction_end"):
            event.listen(session, name, getattr(found, name))
    return found


def run(connection: sqlalchemy.Connection, step: Step) -> set[int]:
    return {row[0] for row in execute(connection, step)}


def execute(connection: sqlalchemy.Connection, step: Step) -> list[Any]:
    from sqlalchemy import text

    return list(connection.execute(text(step.statement.sqlalchemy), step.params))


def _deliver(pending: Pending, connection: sqlalchemy.Connection) -> None:
    """All is committed already: whatever goes wrong from here on is the relay's to mend, not the caller's."""
    try:
        for step in _send(pending, connection):
            if connection.closed:
                with connection.engine.begin() as another:
                    note(step, run(another, step))
            else:
                # The session was given this connection, so it is still there, and between two transactions.
                with connection.begin():
                    note(step, run(connection, step))
    except Exception:
        log.exception("messages could not be sent and marked at once; they are left to the relay")


def _send(pending: Pending, connection: sqlalchemy.Connection) -> list[Step]:
    if not connection.dialect.is_async:
        return pending.deliver()
    from sqlalchemy.util import await_only

    # Inside the session's greenlet: the event loop goes on while a thread sends.
    return await_only(pending.deliver_async())


def open_connection(session: orm.Session, call: str) -> sqlalchemy.Connection:
    """The connection of the session's transaction; TransactionRequired when it is in none."""
    if not session.in_transaction():
        raise TransactionRequired(
            f"{call} needs a transaction, and the session is in none; write `with session.begin(): …` around it"
        )
    return require_transaction(session.connection(), call)


def require_transaction(connection: sqlalchemy.Connection, call: str) -> sqlalchemy.Connection:
    if not connection.in_transaction():
        raise TransactionRequired(
            f"{call} needs a transaction, and the connection is in none; write `with conn.begin(): …` around it"
        )
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise TransactionRequired(
            f"{call} needs a transaction, and the engine commits each statement by itself; use another isolation level"
        )
    return connection
