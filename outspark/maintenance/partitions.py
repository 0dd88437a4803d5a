"""Partitions of tables that are split by RANGE over `created_at`: create ahead, detach and drop, once or on a schedule.

Every change waits only shortly for its locks: a waiting lock holds up every later one, so it is tried again later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final, Literal

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from outspark import contracts
from outspark.config.fields import PartitionSettings
from outspark.config.inbox import InboxSettings
from outspark.config.settings import Settings, SourceSettings
from outspark.database import conninfo
from outspark.database import partitions as statements
from outspark.database.names import MADE_MEANWHILE, TableName, resolve
from outspark.database.partitions import Layout, Partition
from outspark.errors import OutsparkError

log = logging.getLogger(__name__)

Every = Literal["hour", "day", "week", "month"]
_FORMS: dict[Every, str] = {"hour": "%Y%m%d_%H", "day": "%Y%m%d", "week": "%Y%m%d", "month": "%Y%m"}
_ODD = "%Y%m%d_%H%M%S"

# Another session holds the table, or has just made the same partition, or one that overlaps it.
_BUSY = (
    psycopg.errors.LockNotAvailable,
    *MADE_MEANWHILE,
    psycopg.errors.InvalidObjectDefinition,
)


@dataclass(frozen=True, slots=True)
class Changes:
    """What a run did, or would do. `busy` are those that others kept from us; they come again next time."""

    created: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()


class Partitions:
    """The partitions of one table. `conn` is in autocommit, belongs to it alone, and may own the table's DDL.

    `every` is how long a new partition is, in UTC, and `ahead` how many there are beyond the present one. A partition
    goes when it ended `retention` ago and every event in it is final and was so before then; None keeps all. With it
    goes the knowledge of its messages: one that is delivered again is refused after that, not handled again.
    `contract` says when an event is final; without it, that of inboxes does.
    """

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        table: str | TableName,
        *,
        every: Every = "day",
        ahead: int = 3,
        retention: timedelta | None = None,
        lock_timeout: timedelta = timedelta(seconds=1),
        contract: str | None = None,
    ) -> None:
        self._conn = conn
        self._table = resolve(conn, table if isinstance(table, TableName) else TableName.parse(table))
        meaning = contracts.of_inboxes() if contract is None else contracts.get(contract)
        self._sql = meaning.partition_sql()
        statements.require_split(conn, self._table)
        self._every: Every = every
        self._ahead = ahead
        self._retention = retention
        self._lock_timeout = lock_timeout

    def plan(self) -> Changes:
        """What `run_once` would do now, if no other session holds a lock that it needs."""
        created = [name.table for name, _ in self._missing()]
        dropped = [partition.name for partition, _ in self._droppable()]
        return Changes(tuple(created), tuple(dropped))

    def run_once(self) -> Changes:
        created, busy = self.create_ahead()
        dropped, more_busy = self.drop_finished()
        return Changes(tuple(created), tuple(dropped), (*busy, *more_busy))

    def create_ahead(self) -> tuple[list[str], list[str]]:
        """Close every gap from the present on: names created, and names that others kept from us."""
        created: list[str] = []
        busy: list[str] = []
        for name, gap in self._missing():
            (created if self._create(name, *gap) else busy).append(name.table)
        return created, busy

    def drop_finished(self) -> tuple[list[str], list[str]]:
        """Names dropped, and names of those that another session held."""
        dropped: list[str] = []
        busy: list[str] = []
        for partition, before in self._droppable():
            gone = self._drop(partition, before)
            if gone is not False:
                (busy if gone is None else dropped).append(partition.name)
        return dropped, busy

    def _missing(self) -> Iterator[tuple[TableName, tuple[datetime, datetime]]]:
        layout = statements.read(self._conn, self._table)
        for first, last in self._wanted():
            for gap in _gaps(first, last, layout):
                yield self._name(gap, whole=gap == (first, last)), gap

    def _droppable(self) -> Iterator[tuple[Partition, datetime]]:
        """What is final since before that time, which is its retention ago."""
        if self._retention is None:
            return
        layout = statements.read(self._conn, self._table)
        before = layout.now - self._retention
        for partition in layout.partitions:
            if _ended(partition, before) and self._finished(partition, before):
                yield partition, before

    def _wanted(self) -> Iterator[tuple[datetime, datetime]]:
        step = {"hour": "1 hour", "day": "1 day", "week": "7 days", "month": "1 month"}[self._every]
        parameters = {"every": self._every, "step": step, "ahead": self._ahead}
        beginnings = [row[0].replace(tzinfo=UTC) for row in self._rows(statements.BEGINNINGS, parameters)]
        yield from pairwise(beginnings)

    def _name(self, gap: tuple[datetime, datetime], *, whole: bool) -> TableName:
        form = _FORMS[self._every] if whole else _ODD
        return self._table.sibling(f"p{gap[0].astimezone(UTC).strftime(form)}")

    def _create(self, name: TableName, first: datetime, last: datetime) -> bool:
        try:
            with self._conn.transaction():
                self._wait_shortly()
                self._change(statements.CREATE, name)
                self._change(statements.ATTACH, name, first=sql.Literal(first), last=sql.Literal(last))
        except _BUSY as error:
            log.warning("partition was not created", extra=_about(name.table, error))
            return False
        log.info("partition created", extra={"table": str(self._table), "partition": name.table})
        return True

    def _finished(self, partition: Partition, before: datetime) -> bool:
        statement = statements.compose(self._sql.finished, self._table, partition.table)
        try:
            with self._conn.transaction(), psycopg.Cursor(self._conn, row_factory=tuple_row) as cursor:
                self._wait_shortly()
                row = cursor.execute(statement, {"before": before}).fetchone()
        except psycopg.errors.UndefinedTable:
            return False
        except psycopg.errors.LockNotAvailable:
            # As far as can be seen without the lock; it is checked again before the drop.
            return True
        return row is not None and bool(row[0])

    def _drop(self, partition: Partition, before: datetime) -> bool | None:
        """None when another session holds it; False when something in it is open again, or it is gone already."""
        try:
            with self._conn.transaction() as transaction:
                self._wait_shortly()
                # Detached first: so locks are taken in the order in which writers take them, the table's first.
                self._change(statements.DETACH, partition.table)
                statement = statements.compose(self._sql.still_finished, self._table, partition.table)
                with psycopg.Cursor(self._conn, row_factory=tuple_row) as cursor:
                    row = cursor.execute(statement, {"before": before}).fetchone()
                if row is None or not row[0]:
                    raise psycopg.Rollback(transaction)
                self._change(statements.DROP, partition.table)
                log.info("partition dropped", extra={"table": str(self._table), "partition": partition.name})
                return True
        except psycopg.errors.LockNotAvailable as error:
            log.warning("partition was not dropped", extra=_about(partition.name, error))
            return None
        except psycopg.errors.UndefinedTable:
            log.info("partition was gone", extra={"table": str(self._table), "partition": partition.name})
        return False

    def _wait_shortly(self) -> None:
        milliseconds = max(int(self._lock_timeout.total_seconds() * 1000), 1)
        self._conn.execute(statements.LOCK_TIMEOUT.encode(), {"milliseconds": milliseconds})

    def _change(self, template: str, partition: TableName, **parts: sql.Composable) -> None:
        self._conn.execute(statements.compose(template, self._table, partition, **parts))

    def _rows(self, statement: str, parameters: dict[str, Any]) -> list[Any]:
        with psycopg.Cursor(self._conn, row_factory=tuple_row) as cursor:
            return cursor.execute(statement.encode(), parameters).fetchall()


def _gaps(first: datetime, last: datetime, layout: Layout) -> Iterator[tuple[datetime, datetime]]:
    """What of this time no partition holds."""
    at = first
    for begin, end in layout.ranges():
        if end <= at or begin >= last:
            continue
        if begin > at:
            yield at, begin
        at = max(at, end)
    if at < last:
        yield at, last


def _ended(partition: Partition, before: datetime) -> bool:
    return not partition.is_default and partition.last is not None and partition.last <= before


def _about(name: str, error: Exception) -> dict[str, str]:
    return {"partition": name, "error": " ".join(str(error).split())}


LONGEST_WAIT: Final = timedelta(hours=1)
RETRY_PAUSE: Final = timedelta(minutes=1)
_LENGTHS: Final[Mapping[Every, timedelta]] = {
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(days=7),
    "month": timedelta(days=28),
}


def interval(every: Every) -> timedelta:
    """A tenth of a partition, and an hour at most: 6 minutes where there is one an hour, an hour for all others."""
    return min(_LENGTHS[every] / 10, LONGEST_WAIT)


@dataclass(slots=True)
class PartitionKeeper:
    """For the tables of one application. `run` is the life of a thread; several applications do no harm."""

    tables: Mapping[str, tuple[SourceSettings | InboxSettings, PartitionSettings]]
    """By what the settings call it, such as `inboxes.billing`."""
    retry_pause: timedelta = RETRY_PAUSE
    _due: dict[str, float] = field(default_factory=dict)
    """When it is its turn, on the monotonic clock."""

    @classmethod
    def of(cls, settings: Settings) -> PartitionKeeper | None:
        """None where nothing asks for it. A table that several inboxes share is kept once."""
        wanted = settings.partitioned()
        first: dict[tuple[str, str], str] = {}
        for name, (one, _) in wanted.items():
            first.setdefault((one.url.get_secret_value(), one.table), name)
        return cls({name: wanted[name] for name in first.values()}) if first else None

    def run(self, stopping: threading.Event) -> None:
        self._due = dict.fromkeys(self.tables, 0.0)
        while not stopping.wait(max(min(self._due.values()) - time.monotonic(), 0)):
            name = min(self._due, key=self._due.__getitem__)
            self._due[name] = time.monotonic() + self._turn(name).total_seconds()

    def keep(self, name: str) -> Changes:
        """One run on one table. It raises what `Partitions` and the database raise."""
        table, partitions = self.tables[name]
        with psycopg.connect(
            **conninfo.options(table.url.get_secret_value(), application_name="outspark partitions"),
            autocommit=True,
        ) as conn:
            return Partitions(
                conn,
                table.table,
                every=partitions.every,
                ahead=partitions.ahead,
                retention=partitions.retention,
                contract=table.contract,
            ).run_once()

    def _turn(self, name: str) -> timedelta:
        """Answers how long to wait for the next one."""
        try:
            self.keep(name)
        except (psycopg.Error, OutsparkError) as error:
            reason = " ".join(str(error).split())
            log.warning("partitions were not kept", extra={"of": name, "error": reason})
            return self.retry_pause
        # Also when something was busy: they are made ahead and dropped late, so there is time, and asking again
        # soon would only make other sessions wait.
        return interval(self.tables[name][1].every)
