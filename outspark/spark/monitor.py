"""The driver's own eye on the databases and destinations: readiness, stats, gauges, and the word to stop."""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from outspark import contracts, metrics
from outspark.contracts import privileges
from outspark.contracts import slots as slot_statements
from outspark.contracts.findings import refuse_errors
from outspark.contracts.names import TableName, resolve
from outspark.contracts.upkeep import Stats
from outspark.errors import DatabaseRefused, OutsparkError
from outspark.metrics import Tally
from outspark.publishers import Publisher, open_publisher
from outspark.relay.connection import Connection
from outspark.relay.shedlock import relay_lock
from outspark.settings import Settings, SourceSettings
from outspark.spark.databases import Databases, line
from outspark.spark.identity import Identities
from outspark.spark.progress import Progress
from outspark.spark.refusals import Preflight

log = logging.getLogger(__name__)

CHECK_TIMEOUT = 2.0

SAME_ID = """\
-- Is another run of a relay with this id at work on this database?
SELECT pg_try_advisory_lock(%(class)s::int, %(id)s::int)"""


@dataclass(slots=True)
class Monitor:
    """Safe to use from several threads."""

    settings: Settings
    instance: str
    channel: str
    _databases: Databases = field(init=False)
    _publishers: dict[str, Publisher] = field(default_factory=dict)
    _well: set[str] = field(default_factory=set)
    _progress: Progress = field(init=False)
    _identities: Identities = field(default_factory=lambda: Identities("sources"))
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._databases = Databases(f"outspark {self.settings.relay.id} driver")
        self._progress = Progress(self.settings)

    def preflight(self) -> None:
        """Refuse what no waiting can mend: wrong options, table or password. A database that is away may come."""
        for name in self.settings.destinations:
            self._publisher(name)
        preflight = Preflight("source", wait=self.settings.relay.wait_for_database)
        for name, source in self.settings.sources.items():
            try:
                self._look(name, source)
            except (psycopg.Error, DatabaseRefused) as error:
                preflight.failed(name, error)
        preflight.refuse()

    def problems(self, tally: Tally | None = None, lanes: Iterable[str] = ()) -> list[str]:
        """Why the relay is not ready. `lanes` are the problems that lanes told of, for what is stuck."""
        found = []
        for name, source in self.settings.sources.items():
            try:
                self._look(name, source)
            except (psycopg.Error, OutsparkError) as error:
                found.append(f"source {name}: {line(error)}")
        for name in self.settings.destinations:
            try:
                self._publisher(name).check(CHECK_TIMEOUT)
            except OutsparkError as error:
                # Most publishers say who they are.
                found.append(f"destination {name}: {line(error).removeprefix(f'destination {name}: ')}")
        if found:
            self._progress.forget()
            return found
        return [*self._stuck(tally or Tally(), lanes)]

    def _stuck(self, tally: Tally, lanes: Iterable[str]) -> Iterator[str]:
        """Where all is well to look at, and still nothing moves."""
        for name, source in self.settings.sources.items():
            owned = self._owned(source) if source.ordering == "key" else 0
            settled = tally.value(metrics.EVENTS_TOTAL, source=name)
            try:
                with self._use(source) as conn:
                    table = resolve(conn, TableName.parse(source.table))
                    problem = self._progress.problem(conn, name, source, table, owned, settled)
            except (psycopg.Error, OutsparkError) as error:
                problem = line(error)
            if problem:
                why = "".join(f"; a lane says: {one}" for one in dict.fromkeys(lanes))
                yield f"source {name}: {problem}{why}"

    def stats(self) -> dict[str, Stats | str]:
        """Per source, or why there are none."""
        answers: dict[str, Stats | str] = {}
        for name, source in self.settings.sources.items():
            try:
                with self._use(source) as conn:
                    table = resolve(conn, TableName.parse(source.table))
                    answers[name] = contracts.get(source.contract).upkeep(table).stats(conn, exact=False)
            except (psycopg.Error, OutsparkError) as error:
                answers[name] = line(error)
        return answers

    def gauge(self, tally: Tally) -> None:
        for name, source in self.settings.sources.items():
            try:
                self._gauge(name, source, tally)
            except (psycopg.Error, OutsparkError) as error:
                log.debug("no gauges", extra={"source": name, "error": line(error)})
            if source.ordering == "key":
                tally.set(metrics.SLOTS_OWNED, self._owned(source), source=name)

    def drained(self) -> bool:
        """Nothing is in flight, and what is pending is only scheduled for later."""
        every = self.stats().values()
        return all(
            isinstance(one, Stats) and one.pending == one.scheduled and one.delivering == 0 for one in every
        )

    def say_stop(self) -> bool:
        """Tell all lanes to finish; False when no database could be reached, so that no lane can have heard it."""
        urls = {name: source.url.get_secret_value() for name, source in self.settings.sources.items()}
        return self._databases.say_stop(urls, self.channel)

    def release_locks(self) -> None:
        """Let relays of other makes have their turn. Only when all our lanes have ended."""
        for name, source in self.settings.sources.items():
            if contracts.get(source.contract).lock_table(TableName.parse(source.table)) is None:
                continue
            try:
                with self._use(source) as conn:
                    table = resolve(conn, TableName.parse(source.table))
                    lock = relay_lock(conn, table, source, self.settings.relay.id, self.instance)
                    if lock is not None:
                        lock.release()
            except (psycopg.Error, OutsparkError) as error:
                log.warning(
                    "the lock could not be released; it runs out by itself",
                    extra={"source": name, "error": line(error)},
                )

    def close(self) -> None:
        self._databases.close()
        with self._lock:
            for publisher in self._publishers.values():
                publisher.close()

    def _look(self, name: str, source: SourceSettings) -> None:
        """Closely until all was well once, because a database that was away may come back with a wrong table."""
        with self._use(source) as conn:
            table = resolve(conn, TableName.parse(source.table))
            self._check_privileges(name, source, conn, table)
            if name not in self._well:
                self._look_closely(name, source, conn, table)
                self._well.add(name)

    def _check_privileges(
        self, name: str, source: SourceSettings, conn: Connection, table: TableName
    ) -> None:
        """Each time: a privilege may be revoked, and a lane without it claims nothing."""
        needs = privileges.relay_needs(
            contracts.get(source.contract),
            table,
            ordered=source.ordering == "key",
            fans_out=self.settings.fans_out(name),
        )
        if lacks := privileges.lacking(conn, needs):
            raise DatabaseRefused(" ".join(lacks))

    def _look_closely(self, name: str, source: SourceSettings, conn: Connection, table: TableName) -> None:
        self._identities.claim(conn, name, table)
        findings = contracts.get(source.contract).check_table(conn, table)
        refuse_errors(table, findings)
        for finding in findings:
            log.warning(finding.problem, extra={"source": name, "remedy": finding.remedy})
        number = zlib.crc32(self.settings.relay.id.encode()) & 0x7FFFFFFF
        row = conn.execute(
            SAME_ID, {"class": zlib.crc32(b"outspark/relay") & 0x7FFFFFFF, "id": number}
        ).fetchone()
        if row is not None and not row[0]:
            log.warning(
                "another relay with this id is at work on this database; claims carry the run as well, so nothing "
                "is mixed up, but give each its own relay.id to tell them apart",
                extra={"relay": self.settings.relay.id, "source": name},
            )

    def _gauge(self, name: str, source: SourceSettings, tally: Tally) -> None:
        with self._use(source) as conn:
            upkeep = contracts.get(source.contract).upkeep(resolve(conn, TableName.parse(source.table)))
            stats = upkeep.stats(conn, exact=False)
            others = upkeep.gauges(conn, stats)
        tally.set(metrics.PENDING_COUNT, stats.pending, source=name)
        age = stats.oldest_age.total_seconds() if stats.oldest_age else 0.0
        tally.set(metrics.OLDEST_AGE_SECONDS, age, source=name)
        for gauge in others:
            tally.set(gauge.name, gauge.value, source=name, **gauge.labels)

    def _owned(self, source: SourceSettings) -> int:
        try:
            with self._use(source) as conn:
                table = resolve(conn, TableName.parse(source.table))
                statement = slot_statements.compose(slot_statements.OWNED, table)
                row = conn.execute(
                    statement, {"source": str(table), "instance": f"instance={self.instance}"}
                ).fetchone()
                return int(row[0]) if row else 0
        except (psycopg.Error, OutsparkError):
            return 0

    def _use(self, source: SourceSettings) -> AbstractContextManager[Connection]:
        return self._databases.use(source.url.get_secret_value())

    def _publisher(self, name: str) -> Publisher:
        with self._lock:
            if name not in self._publishers:
                self._publishers[name] = open_publisher(name, self.settings.destinations[name])
            return self._publishers[name]


def as_json(stats: Stats | str) -> dict[str, Any]:
    if isinstance(stats, str):
        return {"problem": stats}
    return {name: _plain(getattr(stats, name)) for name in stats.__slots__}


def _plain(value: Any) -> Any:
    return value.total_seconds() if hasattr(value, "total_seconds") else value
