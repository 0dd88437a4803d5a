"""Failed messages of a jEAP outbox: count them, list them page by page, and let the relay send them again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from outspark.contracts.jeap.maintenance import JeapMaintenance
from outspark.contracts.jeap.table import DEFAULT_TABLE
from outspark.contracts.maintenance import DeadEvent, DeadFilter
from outspark.database.names import TableName, resolve


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A failed message without its payload. `resend` says whether the relay will try it again."""

    id: int
    topic: str
    message_id: str
    idempotence_id: str
    type: str
    type_version: str | None
    cluster: str | None
    created: datetime
    failed: datetime
    reason: str | None
    resend: bool
    size: int


class FailedMessages:
    """The failed messages of one table. Each call is part of the transaction on `conn`; none commits."""

    def __init__(self, table: str = str(DEFAULT_TABLE)) -> None:
        self.table = TableName.parse(table)

    def count(
        self,
        conn: psycopg.Connection[Any],
        *,
        since: datetime | None = None,
        before: datetime | None = None,
        resend: bool = False,
    ) -> int:
        """Count messages that failed from `since` on and before `before`; with `resend`, only those marked for it."""
        which = DeadFilter(since=since, before=before, requeued=resend)
        return self._chores(conn).count_dead(conn, which)

    def find(
        self,
        conn: psycopg.Connection[Any],
        *,
        since: datetime | None = None,
        before: datetime | None = None,
        after_id: int = 0,
        resend: bool = False,
        limit: int = 100,
    ) -> list[FailedMessage]:
        """Messages in the order of their ids, `limit` at most. The last id of a page is `after_id` of the next page."""
        which = DeadFilter(since=since, before=before, after=str(after_id), requeued=resend)
        return [_message(event, resend) for event in self._chores(conn).list_dead(conn, which, limit)]

    def resend(self, conn: psycopg.Connection[Any], ids: Iterable[int]) -> list[int]:
        """Mark messages for the relay to send again. Returns the ids that were failed and not marked before."""
        wanted = tuple(map(str, ids))
        marked = self._chores(conn).requeue(conn, DeadFilter(ids=wanted), len(wanted))
        return sorted(map(int, marked))

    def _chores(self, conn: psycopg.Connection[Any]) -> JeapMaintenance:
        return JeapMaintenance(resolve(conn, self.table))


def _message(event: DeadEvent, resend: bool) -> FailedMessage:
    identity = event.headers
    return FailedMessage(
        id=int(event.id),
        topic=event.type,
        message_id=identity["message_id"],
        idempotence_id=identity["message_idempotence_id"],
        type=identity["message_type_name"],
        type_version=identity.get("message_type_version"),
        cluster=identity.get("cluster_name"),
        created=event.created_at,
        failed=event.died_at,
        reason=event.error,
        resend=resend,
        size=event.payload_size,
    )
