"""Finds duplicates: message ids and idempotency keys that the inbox already has, also across partitions."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from outspark.contracts.omnibox.inbox import LOCK_ACCEPT, AcceptStatements
from outspark.database import partitions
from outspark.database.arrays import Texts
from outspark.database.names import TableName, lock_class
from outspark.errors import PartitionMissing, TransactionRequired
from outspark.inbox.intake.batch import SAME_KEY, SAME_MESSAGE, IncomingBatch
from outspark.inbox.intake.message import Incoming

# Ids and keys are hashed to few advisory locks: a batch has thousands of them, and the server's lock table is limited.
LOCK_BUCKETS = 64


@dataclass(frozen=True, slots=True)
class Lookup:
    conn: psycopg.Connection[Any]
    table: TableName
    group: str
    statements: AcceptStatements

    def known_messages(self, message_ids: Sequence[str]) -> set[str]:
        parameters = {"message_ids": Texts(message_ids), "group": self.group}
        return {row[0] for row in self.rows(self.statements.known_messages, parameters)}

    def open_messages(self, message_ids: Sequence[str]) -> set[str]:
        """Those of these messages that are neither completed nor dead."""
        parameters = {"message_ids": Texts(message_ids), "group": self.group}
        return {row[0] for row in self.rows(self.statements.open_messages, parameters)}

    def known_keys(self, keys: Sequence[str]) -> set[str]:
        """Those of these idempotency keys that the inbox has. A key includes its consumer group."""
        rows = self.rows(self.statements.known_keys, {"idempotency_keys": Texts(keys)}) if keys else []
        return {row[0] for row in rows}

    def lock(self, names: Iterable[str]) -> None:
        """Block other consumers from accepting these ids and keys until the end of the transaction."""
        buckets = sorted({zlib.crc32(name.encode()) % LOCK_BUCKETS for name in names})
        rows = self.rows(LOCK_ACCEPT, {"class": lock_class("accept", self.table), "buckets": buckets})
        isolation = rows[0][1]
        if isolation != "read committed":
            raise TransactionRequired(
                f"accepting messages into the partitioned table {self.table} needs READ COMMITTED, and the transaction "
                f"is {isolation.upper()}: it would not see what other consumers accepted while it waited for them"
            )

    def rows(self, statement: str, parameters: dict[str, Any]) -> list[Any]:
        with psycopg.Cursor(self.conn, row_factory=tuple_row) as cursor:
            return cursor.execute(statement.encode(), parameters).fetchall()


CLOCK_TOLERANCE = timedelta(minutes=15)
"""A message whose time is further from the clock may have had no partition when it was delivered first."""


class PartitionedDedup:
    """Deduplication in a partitioned inbox, whose unique indexes include the partition key, the message's time.

    An index therefore finds a duplicate only if both messages have the same time and neither has an idempotency key.
    The others are locked and looked up over all partitions.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._layout: partitions.Layout | None = None

    def forget(self) -> bool:
        """Forget the partitions that were read, because they may have changed; False if none had been read."""
        known, self._layout = self._layout, None
        return known is not None

    def mark_unpartitioned(self, batch: IncomingBatch) -> None:
        """Find messages whose time no partition covers; they are stored as dead in the current partition."""
        if not self._unpartitioned(batch) and all(
            one.created_at is not None for one in batch.incoming.values()
        ):
            return
        layout = self._layout = partitions.read(self._lookup.conn, self._lookup.table)
        if not layout.has_place_for(layout.now):
            raise PartitionMissing(str(self._lookup.table))
        for index in self._unpartitioned(batch):
            one = batch.incoming[index]
            assert one.created_at is not None
            error = f"no partition covers {one.created_at.isoformat()}; there are {layout.span()}"
            batch.unpartitioned.add(index)
            batch.incoming[index] = replace(
                one, created_at=None, own_time=False, error=error, idempotency_key=None
            )

    def drop_known(self, batch: IncomingBatch) -> None:
        """Decide the duplicates that the unique indexes would not find."""
        self._drop_formerly_unpartitioned(batch)
        unindexed = {index: one for index, one in batch.incoming.items() if _is_unindexed(one)}
        if not unindexed:
            return
        ids = [one.message_id for one in unindexed.values()]
        keys = [one.idempotency_key for one in unindexed.values() if one.idempotency_key is not None]
        # First the locks, then the lookup: no other consumer can insert one of these between lookup and INSERT.
        self._lookup.lock([*ids, *keys])
        known_ids, known_keys = self._lookup.known_messages(ids), self._lookup.known_keys(keys)
        for index, one in unindexed.items():
            if one.message_id in known_ids:
                batch.decide(index, SAME_MESSAGE)
            elif one.idempotency_key in known_keys:
                batch.decide(index, SAME_KEY)
        batch.drop_repeated("idempotency_key")

    def _drop_formerly_unpartitioned(self, batch: IncomingBatch) -> None:
        """Drop messages that were stored under another time because their partition did not exist then."""
        now = datetime.now(UTC)
        ids = {
            index: one.message_id
            for index, one in batch.incoming.items()
            if one.own_time and one.created_at is not None and abs(now - one.created_at) > CLOCK_TOLERANCE
        }
        known = self._lookup.known_messages(list(ids.values())) if ids else set()
        for index, id in ids.items():
            if id in known:
                batch.decide(index, SAME_MESSAGE)

    def _unpartitioned(self, batch: IncomingBatch) -> list[int]:
        layout = self._layout
        return [
            index
            for index, one in batch.incoming.items()
            if one.created_at is not None and (layout is None or not layout.has_place_for(one.created_at))
        ]


def _is_unindexed(one: Incoming) -> bool:
    return not one.own_time or one.idempotency_key is not None
