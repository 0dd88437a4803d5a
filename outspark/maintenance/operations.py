"""Maintenance of an outbox or inbox of any contract: stats, dead events, prune, reap, in small transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from outspark import contracts
from outspark.contracts.maintenance import (
    DeadEvent,
    DeadFilter,
    Finished,
    Reaped,
    Stats,
    TableMaintenance,
    Unlocking,
)
from outspark.errors import SettingsError

BATCH = 1000
"""The most rows that one statement changes, so that locks are short and no transaction holds up VACUUM."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long finished events are kept; None keeps them forever."""

    delivered: timedelta | None = None
    dead: timedelta | None = None

    @property
    def ages(self) -> list[tuple[Finished, timedelta]]:
        ages: list[tuple[Finished, timedelta | None]] = [("delivered", self.delivered), ("dead", self.dead)]
        return [(how, age) for how, age in ages if age is not None]


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many events prune has deleted so far or, in a dry run, would delete."""

    delivered: int = 0
    dead: int = 0

    @property
    def total(self) -> int:
        return self.delivered + self.dead

    def plus(self, how: Finished, count: int) -> Pruned:
        if how == "delivered":
            return replace(self, delivered=self.delivered + count)
        return replace(self, dead=self.dead + count)


class Maintenance:
    """The maintenance operations on one table. Only this object uses `conn`, and no transaction is open on it."""

    def __init__(self, conn: psycopg.Connection[Any], maintenance: TableMaintenance) -> None:
        self._conn = conn
        self._chores = maintenance

    def stats(self, *, exact: bool = False) -> Stats:
        """The cost does not depend on the number of delivered events, unless `exact` asks to count them."""
        with self._transaction():
            return self._chores.stats(self._conn, exact=exact)

    def count_dead(self, which: DeadFilter) -> int:
        """The dry run of `requeue` and `discard`."""
        with self._transaction():
            return self._chores.count_dead(self._conn, which)

    def list_dead(self, which: DeadFilter, limit: int = 100) -> list[DeadEvent]:
        with self._transaction():
            return self._chores.list_dead(self._conn, which, limit)

    def show_dead(self, id: str) -> DeadEvent | None:
        with self._transaction():
            return self._chores.show_dead(self._conn, id)

    def requeue(self, which: DeadFilter, limit: int | None = None) -> list[str]:
        """Make dead events pending again; return the ids of the rows that were changed."""
        return self._in_batches(self._chores.requeue, which, limit)

    def discard(self, which: DeadFilter, limit: int | None = None) -> list[str]:
        """Delete dead events; return the ids of the rows that were deleted."""
        discarded = self._in_batches(self._chores.discard, which, limit)
        self._forget_settled()
        return discarded

    def count_prunable(self, retention: Retention) -> Pruned:
        """The dry run of `prune`."""
        counted = Pruned()
        with self._transaction():
            now = self._chores.now(self._conn)
            for how, age in retention.ages:
                counted = counted.plus(how, self._chores.count_finished(self._conn, how, now - age))
        return counted

    def prune(
        self, retention: Retention, batch: int = BATCH, max_batches: int | None = None
    ) -> Iterator[Pruned]:
        """Delete finished events past their retention, one transaction a batch, and yield the sum after each.

        Prune skips locked rows, which a later run deletes, so it neither waits for other transactions nor blocks them.
        `max_batches` limits the batches of delivered and of dead events each.
        """
        done = Pruned()
        with self._transaction():
            now = self._chores.now(self._conn)
        for how, age in retention.ages:
            # `mark` is where the previous batch ended: the next one does not scan deleted rows' index entries again.
            mark, more, batches = None, True, 0
            while more and (max_batches is None or batches < max_batches):
                with self._transaction():
                    pruned = self._chores.prune(self._conn, how, now - age, mark, batch)
                mark, more, batches = pruned.mark, pruned.deleted == batch, batches + 1
                done = done.plus(how, pruned.deleted)
                yield done
        self._forget_settled()

    def reap(self, lease: timedelta, max_attempts: int, batch: int = 100) -> Reaped:
        """Release at most `batch` leases older than `lease`; each counts as a failed attempt."""
        with self._transaction():
            return self._chores.reap(self._conn, lease, max_attempts, batch)

    def unlock(self, ids: list[str], reason: str) -> list[str]:
        """Release the locks of these events without counting an attempt; return the ids that were locked.

        Use it only if the relay or worker that holds the locks is known to have crashed or to hang. A relay that is
        still running may send the event twice; a worker finds that it lost its lock and rolls its effects back.
        """
        if not isinstance(self._chores, Unlocking):
            able = " and ".join(one.name for one in contracts.known() if hasattr(one.maintenance, "unlock"))
            raise SettingsError(
                f"only inboxes and outboxes of contract {able} support a forced unlock; in other tables reap releases "
                "expired claims"
            )
        with self._transaction():
            return self._chores.unlock(self._conn, ids, reason)

    def _in_batches(
        self,
        change: Callable[[psycopg.Connection[Any], DeadFilter, int], list[str]],
        which: DeadFilter,
        limit: int | None,
    ) -> list[str]:
        which = self._until_now(which)
        changed: list[str] = []
        while limit is None or len(changed) < limit:
            size = BATCH if limit is None else min(BATCH, limit - len(changed))
            with self._transaction():
                ids = change(self._conn, which, size)
            changed += ids
            if len(ids) < size:
                break
        return changed

    def _forget_settled(self) -> None:
        with self._transaction():
            self._chores.forget_settled(self._conn)

    def _until_now(self, which: DeadFilter) -> DeadFilter:
        # An event that becomes dead again during the run must not be requeued again, or the run might never end.
        with self._transaction():
            now = self._chores.now(self._conn)
        return replace(which, before=now if which.before is None else min(now, which.before))

    def _transaction(self) -> Any:
        if self._conn.info.transaction_status is not TransactionStatus.IDLE:
            raise RuntimeError(
                "maintenance commits on its own and needs a connection without an open transaction"
            )
        return self._conn.transaction()
