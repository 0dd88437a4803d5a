"""Taking messages in: one INSERT a batch, and one outcome a message. What is there already is a duplicate."""

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

# Whatever the database's default is: who waited for others has to see what they took in.
ISOLATE = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"

ASYNC_COMMIT = "SET LOCAL synchronous_commit = off"

# The smallest thing that a commit waits for.
FLUSH = """\
-- Write to the log, so that all before it is on disk when this returns
SELECT pg_logical_emit_message(true, 'outspark', '')"""

# What single messages can do to a statement: no JSON, a number out of range, nesting too deep, whatever jsonb minds.
_UNFIT = (psycopg.DataError, psycopg.errors.StatementTooComplex, psycopg.errors.ProgramLimitExceeded)

TOLD = 5
"""Places in a line about dead messages."""
LARGE = 32
"""Messages in a batch from which on it pays to look up first which are there, and then to insert the others simply."""

CROWDED = 20
"""Batches in which to reckon with others who take in the same messages, after we met one."""


class Acceptor:
    """Takes in messages for one consumer group on one connection.

    Where `conn` is in no transaction a call of `accept` is one, committed when it returns; otherwise it is a part of
    the caller's. A batch is taken in as a whole or, when the database fails, not at all.
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
        """When the next batch comes at the earliest: the database's clock may go back, where a standby takes over."""
        self._check_first = False
        """Look into bodies before PostgreSQL does, because some were no JSON of late."""
        self._async_commit = False
        self._crowded = 0

    def accept(self, messages: Sequence[Received], *, async_commit: bool = False) -> list[Accepted]:
        """One outcome a message, in their order.

        With `async_commit` the commit does not wait for the disk: a crash of the server, which ends the session too,
        may undo it until a later commit is on disk. Without it, every row that the outcomes speak of is on disk, also
        one that another consumer accepted with `async_commit`.
        """
        if not messages:
            return []
        self._async_commit = async_commit
        try:
            outcomes = self._accept(messages)
        except psycopg.errors.CheckViolation as error:
            # A constraint has a name. Without one, a partition went that we thought was there: nothing was taken in.
            if error.diag.constraint_name or not self._partitioned_dedup.forget():
                raise
            outcomes = self._accept(messages)
        except (
            psycopg.errors.UniqueViolation,
            psycopg.errors.DeadlockDetected,
            psycopg.errors.SerializationFailure,
        ):
            # Somebody took in the same messages at the same time, and is through by now.
            self._crowded = CROWDED
            outcomes = self._accept(messages)
        self._crowded = max(self._crowded - 1, 0)
        self._count(messages, outcomes)
        return outcomes

    def flush(self) -> None:
        """Make safe all that was accepted lazily."""
        with self.conn.transaction():
            self.conn.execute(FLUSH)

    def unsettled(self, message_ids: Sequence[str]) -> set[str]:
        """Which of these messages are accepted and not at their end."""
        return self._lookup.open_messages(message_ids)

    def _accept(self, messages: Sequence[Received]) -> list[Accepted]:
        try:
            return self._try(messages)
        except _UNFIT:
            if self._check_first:
                raise
            self._check_first = True
            return self._try(messages)

    def _try(self, messages: Sequence[Received]) -> list[Accepted]:
        alone = self.conn.info.transaction_status is TransactionStatus.IDLE
        with self.conn.transaction():
            if alone and self.partitioned:
                self.conn.execute(ISOLATE)
            if self._async_commit:
                self.conn.execute(ASYNC_COMMIT)
            batch = self._read(messages)
            wrote = self._take_in(batch)
            if not wrote and not self._async_commit:
                # A commit with nothing to write waits for nothing, though these are duplicates of rows that may not
                # be on disk yet: whoever took them in lost their partition before it told the broker, say.
                self.conn.execute(FLUSH)
        return [batch.outcomes[index] for index in range(len(messages))]

    def _read(self, messages: Sequence[Received]) -> IncomingBatch:
        previews = list(map(self.reader.preview, messages))
        known = self._known([one.message_id for one in previews]) if self._looks_up(messages) else {}
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

    def _take_in(self, batch: IncomingBatch) -> bool:
        """Is there anything new?"""
        if self.partitioned:
            self._partitioned_dedup.mark_strays(batch)
            self._partitioned_dedup.drop_known(batch)
        new = self._insert(batch, list(batch.incoming))
        self._decide(batch, new)
        return bool(new)

    def _insert(self, batch: IncomingBatch, indexes: list[int]) -> dict[str, str]:
        """Messages that are new, and their rows' ids. What PostgreSQL refuses is found by halving, and kept as dead."""
        if not indexes:
            return {}
        try:
            # Only what is looked for among the others needs a way back.
            with self.conn.transaction() if self._check_first else nullcontext():
                return self._insert_all([batch.incoming[index] for index in indexes], batch)
        except _UNFIT as error:
            if not self._check_first:
                raise
            if len(indexes) > 1:
                half = len(indexes) // 2
                return self._insert(batch, indexes[:half]) | self._insert(batch, indexes[half:])
            [index] = indexes
            if batch.incoming[index].error is not None:
                raise
            reason = f"PostgreSQL does not take its body: {error.diag.message_primary}"
            batch.incoming[index] = batch.incoming[index].refused(batch.messages[index].body, reason)
            return self._insert(batch, indexes)

    def _insert_all(self, incoming: Sequence[Incoming], batch: IncomingBatch) -> dict[str, str]:
        rows = parameters(incoming, self.settings, self._after)
        looked_up = self._looks_up(batch.messages) and not rows["idempotency_keys"].items
        if looked_up and not self._crowded and not self._check_first:
            [[ids]] = self._lookup.rows(self._sql.accept_new, rows)
            new = {one.message_id: id_at(ids, index) for index, one in enumerate(incoming)}
        else:
            new = {message_id: id for id, message_id in self._lookup.rows(self._sql.accept, rows)}
        if new:
            self._after = time_after(max(new.values()))
        return new

    def _decide(self, batch: IncomingBatch, new: Mapping[str, str]) -> None:
        by_key = [
            one.message_id
            for one in batch.incoming.values()
            if one.idempotency_key is not None and one.message_id not in new
        ]
        known = self._lookup.known_messages(by_key) if by_key else set()
        for index, one in batch.incoming.items():
            if one.message_id in new:
                batch.outcomes[index] = batch.kept(index, one, new[one.message_id])
            elif one.idempotency_key is None or one.message_id in known:
                batch.outcomes[index] = SAME_MESSAGE
            else:
                batch.outcomes[index] = SAME_KEY
        batch.incoming.clear()

    def _looks_up(self, messages: Sequence[Received]) -> bool:
        return len(messages) >= LARGE

    def _known(self, message_ids: Sequence[str]) -> dict[int, Accepted]:
        """Those that are there already, by their ids alone: the rest of them need not be read."""
        known = self._lookup.known_messages(message_ids)
        return {index: SAME_MESSAGE for index, id in enumerate(message_ids) if id in known}

    def _count(self, messages: Sequence[Received], outcomes: Sequence[Accepted]) -> None:
        words = Counter([outcome.word for outcome in outcomes])
        self._check_first = words["refused"] > 0
        for said, count in words.items():
            self.tally.add(INBOX_ACCEPTED_TOTAL, count, group=self.settings.group, outcome=said)
        if not words.keys() & {Refused.word, OutOfPartitions.word}:
            return
        dead = [
            (f"{message.log or message.topic}-{message.partition}-{message.offset}", outcome)
            for message, outcome in zip(messages, outcomes, strict=True)
            if isinstance(outcome, Refused | OutOfPartitions)
        ]
        extra = {"count": len(dead), "places": [index for index, _ in dead[:TOLD]], "error": dead[0][1].error}
        log.error("messages are dead", extra={"group": self.settings.group, **extra})


def parameters(
    incoming: Sequence[Incoming], settings: AcceptSettings, after: datetime | None = None
) -> dict[str, Any]:
    """Those of the statement that takes in messages, for one batch, which comes after this time."""
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
    """Most batches have nothing in such a column: then no value is sent, and `unnest` fills it up with NULL."""
    return Texts(column if any(column) else [])
