"""Accepts messages into the inbox table: one INSERT a batch, one outcome a message, duplicates skipped."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from outspark.brokers.feed import Received
from outspark.config.inbox import AcceptSettings
from outspark.contracts.omnibox.inbox import PARTITIONED, accept_statements, resolve_inbox
from outspark.contracts.omnibox.inbox_ids import id_at, time_after
from outspark.database.arrays import Texts, Times, register
from outspark.database.names import TableName
from outspark.inbox.intake.batch import (
    SAME_KEY,
    SAME_MESSAGE,
    Accepted,
    IncomingBatch,
    OutOfPartitions,
    Refused,
)
from outspark.inbox.intake.dedup import Lookup, PartitionedDedup
from outspark.inbox.intake.message import Incoming, Reader
from outspark.observability.metrics import INBOX_ACCEPTED_TOTAL, Tally

log = logging.getLogger(__name__)

# Whatever the database's default is: after a wait for another consumer's locks, this one must see that one's rows.
ISOLATE = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"

ASYNC_COMMIT = "SET LOCAL synchronous_commit = off"

# The smallest write for which a commit waits until it is on disk.
FLUSH = """\
-- Write to the log, so that all before it is on disk when this returns
SELECT pg_logical_emit_message(true, 'outspark', '')"""

# Errors that a single message can cause in a statement: invalid JSON, a number out of range, too deep nesting.
_BODY_ERRORS = (psycopg.DataError, psycopg.errors.StatementTooComplex, psycopg.errors.ProgramLimitExceeded)

MAX_LOGGED = 5
"""Broker positions in one log line about dead messages."""
MIN_LOOKUP_BATCH = 32
"""From this batch size on it is faster to look up known messages first and to insert the others without ON CONFLICT."""

CONTENDED_BATCHES = 20
"""After a conflict with another consumer, this many batches keep ON CONFLICT in their INSERT."""


class Acceptor:
    """Accepts messages for one consumer group on one connection.

    If `conn` is not in a transaction, each call of `accept` is a transaction of its own, committed on return;
    otherwise the call is part of the caller's transaction. A batch is accepted as a whole or, if the database fails,
    not at all.
    """

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        table: str | TableName,
        settings: AcceptSettings,
        tally: Tally | None = None,
    ) -> None:
        name = table if isinstance(table, TableName) else TableName.parse(table)
        self.conn = conn
        self.settings = settings
        self.reader = Reader(settings)
        self.tally = tally or Tally()
        register(conn)
        self.table = resolve_inbox(conn, name)
        self._sql = accept_statements(self.table)
        self._lookup = Lookup(conn, self.table, settings.group, self._sql)
        name_in_catalog = {"name": self.table.identifier.as_string(conn)}
        self.partitioned = bool(self._lookup.rows(PARTITIONED, name_in_catalog)[0][0])
        self._partitioned_dedup = PartitionedDedup(self._lookup)
        ahead = self._lookup.rows(self._sql.ahead, {})
        self._after = time_after(ahead[0][0]) if ahead else None
        """Row ids of the next batch start after this time: the clock may go back when a standby takes over."""
        self._check_first = False
        """Parse bodies before the INSERT, because a recent batch had one that is not JSON."""
        self._async_commit = False
        self._contended = 0

    def accept(self, messages: Sequence[Received], *, async_commit: bool = False) -> list[Accepted]:
        """Return one outcome per message, in order.

        With `async_commit` the commit does not wait for the disk: until a later commit is on disk, a crash of the
        server may undo it, and that crash also ends this session. Without `async_commit`, every row behind an outcome
        is on disk, including rows that another consumer accepted with `async_commit`.
        """
        if not messages:
            return []
        self._async_commit = async_commit
        try:
            outcomes = self._accept(messages)
        except psycopg.errors.CheckViolation as error:
            # A violated constraint has a name. Without a name, the row's partition is missing: it was dropped after
            # the partitions were read. The statement inserted nothing, so the batch can be accepted again.
            if error.diag.constraint_name or not self._partitioned_dedup.forget():
                raise
            outcomes = self._accept(messages)
        except (
            psycopg.errors.UniqueViolation,
            psycopg.errors.DeadlockDetected,
            psycopg.errors.SerializationFailure,
        ):
            # Another consumer accepted the same messages concurrently. Its transaction has ended by now, so its rows
            # are found as duplicates.
            self._contended = CONTENDED_BATCHES
            outcomes = self._accept(messages)
        self._contended = max(self._contended - 1, 0)
        self._count(messages, outcomes)
        return outcomes

    def flush(self) -> None:
        """Wait until every row that was accepted with `async_commit` is on disk."""
        with self.conn.transaction():
            self.conn.execute(FLUSH)

    def unsettled(self, message_ids: Sequence[str]) -> set[str]:
        """Return those of these messages that are accepted and neither completed nor dead."""
        return self._lookup.open_messages(message_ids)

    def _accept(self, messages: Sequence[Received]) -> list[Accepted]:
        try:
            return self._try(messages)
        except _BODY_ERRORS:
            if self._check_first:
                raise
            # PostgreSQL does not say which message is at fault, so the second try parses every body first.
            self._check_first = True
            return self._try(messages)

    def _try(self, messages: Sequence[Received]) -> list[Accepted]:
        own_transaction = self.conn.info.transaction_status is TransactionStatus.IDLE
        with self.conn.transaction():
            if own_transaction and self.partitioned:
                self.conn.execute(ISOLATE)
            if self._async_commit:
                self.conn.execute(ASYNC_COMMIT)
            batch = self._read(messages)
            wrote = self._accept_new(batch)
            if not wrote and not self._async_commit:
                # The messages are duplicates of rows that may not be on disk yet, for example of a consumer that lost
                # the partition before it committed offsets. A transaction without a write does not wait for the disk
                # at commit, so this one writes.
                self.conn.execute(FLUSH)
        return [batch.outcomes[index] for index in range(len(messages))]

    def _read(self, messages: Sequence[Received]) -> IncomingBatch:
        previews = list(map(self.reader.preview, messages))
        known = self._known([one.message_id for one in previews]) if self._uses_lookup(messages) else {}
        read = self.reader.read
        incoming = {
            index: read(message, previews[index])
            for index, message in enumerate(messages)
            if index not in known
        }
        batch = IncomingBatch(messages, incoming, known)
        batch.drop_repeated("message_id")
        if self._check_first:
            batch.check()
        return batch

    def _accept_new(self, batch: IncomingBatch) -> bool:
        """Insert the new messages of the batch and decide every outcome; return whether there are any."""
        if self.partitioned:
            self._partitioned_dedup.mark_unpartitioned(batch)
            self._partitioned_dedup.drop_known(batch)
        new = self._insert(batch, list(batch.incoming))
        self._decide(batch, new)
        return bool(new)

    def _insert(self, batch: IncomingBatch, indexes: list[int]) -> dict[str, str]:
        """Return the new messages' ids and the ids of their rows.

        A message that PostgreSQL refuses is found by halving the batch, and is inserted as dead.
        """
        if not indexes:
            return {}
        try:
            # Only the search for a refused message needs savepoints.
            with self.conn.transaction() if self._check_first else nullcontext():
                return self._insert_all([batch.incoming[index] for index in indexes], batch)
        except _BODY_ERRORS as error:
            if not self._check_first:
                raise
            if len(indexes) > 1:
                half = len(indexes) // 2
                return self._insert(batch, indexes[:half]) | self._insert(batch, indexes[half:])
            [index] = indexes
            if batch.incoming[index].error is not None:
                raise
            reason = f"PostgreSQL refuses the body: {error.diag.message_primary}"
            batch.incoming[index] = batch.incoming[index].refused(batch.messages[index].body, reason)
            return self._insert(batch, indexes)

    def _insert_all(self, incoming: Sequence[Incoming], batch: IncomingBatch) -> dict[str, str]:
        rows = parameters(incoming, self.settings, self._after)
        looked_up = self._uses_lookup(batch.messages) and not rows["idempotency_keys"].items
        # After a lookup a plain INSERT without ON CONFLICT is enough. If another consumer inserts one of the messages
        # in between, the INSERT fails with a UniqueViolation and `accept` repeats the batch.
        if looked_up and not self._contended and not self._check_first:
            [[ids]] = self._lookup.rows(self._sql.accept_new, rows)
            new = {one.message_id: id_at(ids, index) for index, one in enumerate(incoming)}
        else:
            new = {message_id: id for id, message_id in self._lookup.rows(self._sql.accept, rows)}
        if new:
            self._after = time_after(max(new.values()))
        return new

    def _decide(self, batch: IncomingBatch, new: Mapping[str, str]) -> None:
        # A message that was not inserted is a duplicate by its id or by its idempotency key.
        by_key = [
            one.message_id
            for one in batch.incoming.values()
            if one.idempotency_key is not None and one.message_id not in new
        ]
        known = self._lookup.known_messages(by_key) if by_key else set()
        for index, one in batch.incoming.items():
            if one.message_id in new:
                batch.outcomes[index] = batch.inserted(index, one, new[one.message_id])
            elif one.idempotency_key is None or one.message_id in known:
                batch.outcomes[index] = SAME_MESSAGE
            else:
                batch.outcomes[index] = SAME_KEY
        batch.incoming.clear()

    def _uses_lookup(self, messages: Sequence[Received]) -> bool:
        return len(messages) >= MIN_LOOKUP_BATCH

    def _known(self, message_ids: Sequence[str]) -> dict[int, Accepted]:
        """Find duplicates by message id alone; the acceptor does not read the rest of such a message."""
        known = self._lookup.known_messages(message_ids)
        return {index: SAME_MESSAGE for index, id in enumerate(message_ids) if id in known}

    def _count(self, messages: Sequence[Received], outcomes: Sequence[Accepted]) -> None:
        words = Counter([outcome.word for outcome in outcomes])
        self._check_first = words["refused"] > 0
        for word, count in words.items():
            self.tally.add(INBOX_ACCEPTED_TOTAL, count, group=self.settings.group, outcome=word)
        if not words.keys() & {Refused.word, OutOfPartitions.word}:
            return
        dead = [
            (f"{message.log or message.topic}-{message.partition}-{message.offset}", outcome)
            for message, outcome in zip(messages, outcomes, strict=True)
            if isinstance(outcome, Refused | OutOfPartitions)
        ]
        extra = {
            "count": len(dead),
            "positions": [position for position, _ in dead[:MAX_LOGGED]],
            "error": dead[0][1].error,
        }
        log.error("messages were accepted as dead", extra={"group": self.settings.group, **extra})


def parameters(
    incoming: Sequence[Incoming], settings: AcceptSettings, after: datetime | None = None
) -> dict[str, Any]:
    """Return the parameters of the accept statements for one batch; its row ids start after time `after`."""
    return {
        "after": after,
        "group": settings.group,
        "max_attempts": settings.max_attempts,
        "event_types": Texts([one.event_type for one in incoming]),
        "message_ids": Texts([one.message_id for one in incoming]),
        "sources": Texts([one.source for one in incoming]),
        "payloads": Texts([one.payload for one in incoming]),
        "headers": Texts([one.headers for one in incoming]),
        "trace_ids": _rare([one.trace_id for one in incoming]),
        "idempotency_keys": _rare([one.idempotency_key for one in incoming]),
        "correlation_ids": _rare([one.correlation_id for one in incoming]),
        "causation_ids": _rare([one.causation_id for one in incoming]),
        "schema_versions": _rare([one.schema_version for one in incoming]),
        "errors": _rare([one.error for one in incoming]),
        "created_ats": Times([one.created_at for one in incoming]),
    }


def _rare(column: list[str | None]) -> Texts:
    """Most batches have no value in such a column: then an empty array is sent, and `unnest` fills it with NULL."""
    return Texts(column if any(column) else [])
