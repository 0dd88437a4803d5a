"""SQLAlchemy's side: a session's own events tell when its messages are held, counted, sent and marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outspark.errors import TransactionRequired
from outspark.outbox.jeap.pending import Pending, left_to_the_relay
from outspark.outbox.jeap.sender import TxStatus
from outspark.outbox.statements import Script, run

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy import orm

_WATCH = "outspark.outbox.jeap"


class Watch:
    """What a session has put into outboxes, over one transaction after the other.

    Events fire for savepoints too; only the outermost transaction counts. Messages are sent after that has ended,
    because then its connection is back in the pool.
    """

    def __init__(self) -> None:
        self._connection: sqlalchemy.Connection | None = None
        self._pending = Pending()
        self._status: TxStatus = "rolled_back"

    def pending(self, connection: sqlalchemy.Connection) -> Pending:
        """What is pending in the session's transaction, which is on `connection`."""
        self._connection = connection
        return self._pending

    def before_commit(self, session: orm.Session) -> None:
        if self._connection is not None and not session.in_nested_transaction():
            self._status = "unknown"
            run(self._connection, "commit", self._pending.hold())

    def after_commit(self, session: orm.Session) -> None:
        if self._connection is not None and not session.in_nested_transaction():
            # A session may have joined a transaction of its caller, who may yet commit it or roll it back.
            self._status = "unknown" if self._connection.in_transaction() else "committed"

    def after_rollback(self, session: orm.Session) -> None:
        if self._connection is not None and not session.in_nested_transaction():
            # If the connection was lost during COMMIT, the end stays unknown.
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


def _deliver(pending: Pending, connection: sqlalchemy.Connection) -> None:
    with left_to_the_relay():
        for mark in _send(pending, connection):
            if connection.closed:
                with connection.engine.begin() as another:
                    run(another, "commit", mark)
            else:
                # The session was given this connection, so it is still open, and between two transactions.
                with connection.begin():
                    run(connection, "commit", mark)


def _send(pending: Pending, connection: sqlalchemy.Connection) -> list[Script[None]]:
    if not connection.dialect.is_async:
        return pending.deliver()
    from sqlalchemy.util import await_only

    # Inside the session's greenlet: the event loop goes on while a thread sends.
    return await_only(pending.deliver_async())


def require_begun(handle: orm.Session | sqlalchemy.Connection, call: str, kind: str) -> None:
    """SQLAlchemy begins a transaction with the first statement, but a message belongs to a change that is made."""
    if not handle.in_transaction():
        raise TransactionRequired(
            f"{call} needs a transaction, and the {kind} is in none; write `with {kind}.begin(): …` around it"
        )
