"""Finds duplicates: ids and idempotency keys that the inbox has already, in one table or over all partitions."""

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

# Ids and keys share few locks: a batch needs many, and the server has room for only so many.
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
        """Those that are not at their end."""
        parameters = {"message_ids": Texts(message_ids), "group": self.group}
        return {row[0] for row in self.rows(self.statements.open_messages, parameters)}

    def known_keys(self, keys: Sequence[str]) -> set[str]:
        """They carry their group themselves."""
        rows = self.rows(self.statements.known_keys, {"idempotency_keys": Texts(keys)}) if keys else []
        return {row[0] for row in rows}

    def lock(self, names: Iterable[str]) -> None:
        """Until the end of the transaction nobody else takes in messages with these ids and keys."""
        buckets = sorted({zlib.crc32(name.encode()) % LOCK_BUCKETS for name in names})
        rows = self.rows(LOCK_ACCEPT, {"class": lock_class("accept", self.table), "buckets": buckets})
        isolation = rows[0][1]
        if isolation != "read committed":
            raise TransactionRequired(
                f"taking messages into the partitioned table {self.table} needs READ COMMITTED, and the transaction "
                f"is {isolation.upper()}: it would not see what others took in while it waited for them"
            )

    def rows(self, statement: str, parameters: dict[str, Any]) -> list[Any]:
        with psycopg.Cursor(self.conn, row_factory=tuple_row) as cursor:
            return cursor.execute(statement.encode(), parameters).fetchall()


OFF = timedelta(minutes=15)
"""How far from the clock a message's time may be before it might have had no partition once."""


class PartitionedDedup:
    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._layout: partitions.Layout | None = None

    def forget(self) -> bool:
        """The partitions may be others by now. False when nothing was remembered."""
        known, self._layout = self._layout, None
        return known is not None

    def mark_strays(self, batch: IncomingBatch) -> None:
        """Find messages whose time no partition holds; they go into the present one, as dead."""
        if not self._strays(batch) and all(one.created_at is not None for one in batch.incoming.values()):
            return
        layout = self._layout = partitions.read(self._lookup.conn, self._lookup.table)
        if not layout.has_place_for(layout.now):
            raise PartitionMissing(str(self._lookup.table))
        for index in self._strays(batch):
            one = batch.incoming[index]
            assert one.created_at is not None
            error = f"no partition holds {one.created_at.isoformat()}; there are {layout.span()}"
            batch.strays.add(index)
            batch.incoming[index] = replace(
                one, created_at=None, own_time=False, error=error, idempotency_key=None
            )

    def drop_known(self, batch: IncomingBatch) -> None:
        """Decide about what the indexes would not find."""
        self._drop_strays_of_old(batch)
        doubtful = {index: one for index, one in batch.incoming.items() if _doubtful(one)}
        if not doubtful:
            return
        ids = [one.message_id for one in doubtful.values()]
        keys = [one.idempotency_key for one in doubtful.values() if one.idempotency_key is not None]
        self._lookup.lock([*ids, *keys])
        known_ids, known_keys = self._lookup.known_messages(ids), self._lookup.known_keys(keys)
        for index, one in doubtful.items():
            if one.message_id in known_ids:
                batch.decide(index, SAME_MESSAGE)
            elif one.idempotency_key in known_keys:
                batch.decide(index, SAME_KEY)
        batch.drop_repeated("idempotency_key")

    def _drop_strays_of_old(self, batch: IncomingBatch) -> None:
        """A message that had no partition for its time is kept under another, even when it has one by now."""
        now = datetime.now(UTC)
        ids = {
            index: one.message_id
            for index, one in batch.incoming.items()
            if one.own_time and one.created_at is not None and abs(now - one.created_at) > OFF
        }
        known = self._lookup.known_messages(list(ids.values())) if ids else set()
        for index, id in ids.items():
            if id in known:
                batch.decide(index, SAME_MESSAGE)

    def _strays(self, batch: IncomingBatch) -> list[int]:
        layout = self._layout
        return [
            index
            for index, one in batch.incoming.items()
            if one.created_at is not None and (layout is None or not layout.has_place_for(one.created_at))
        ]


def _doubtful(one: Incoming) -> bool:
    return not one.own_time or one.idempotency_key is not None
