"""The driver's own checks of databases and destinations: readiness, stats, gauges; also sends the stop to lanes."""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from outspark import contracts
from outspark.brokers import Publisher, open_publisher
from outspark.config.settings import Settings, SourceSettings
from outspark.contracts import privileges
from outspark.contracts.maintenance import Gauge, Stats
from outspark.database import slots as slot_statements
from outspark.database.check import refuse_errors
from outspark.database.names import TableName, resolve
from outspark.database.session import Connection
from outspark.errors import DatabaseRefused, OutsparkError
from outspark.observability import metrics
from outspark.observability.metrics import Tally
from outspark.relay.assembly import relay_lock
from outspark.spark.databases import Databases, line
from outspark.spark.deadlines import Deadlines
from outspark.spark.identity import Identities
from outspark.spark.preflight import Preflight
from outspark.spark.progress import Progress

log = logging.getLogger(__name__)

CHECK_TIMEOUT = 2.0
COUNT_TIMEOUT = 10.0
"""Seconds that counting the rows of a large table may take."""

SAME_ID = """\
-- Is another run of a relay with this id at work on this database?
SELECT pg_try_advisory_lock(%(class)s::int, %(id)s::int)"""


@dataclass(slots=True)
class Monitor:
    """Checks the sources and destinations of one relay. Safe to use from several threads."""

    settings: Settings
    instance: str
    channel: str
    _databases: Databases = field(init=False)
    _counting: Databases = field(init=False)
    """Connections of their own, so that a readiness check never waits behind a count."""
    _publishers: dict[str, Publisher] = field(default_factory=dict)
    _checked: set[str] = field(default_factory=set)
    _watching: Databases = field(init=False)
    """A third set of connections: a progress check may read every due event, and nothing else should wait for it."""
    _progress: dict[str, Progress] = field(default_factory=dict)
    _stuck: dict[str, list[str]] = field(default_factory=dict)
    _identities: Identities = field(default_factory=lambda: Identities("sources"))
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        name = f"outspark {self.settings.relay.id} driver"
        self._databases, self._counting = Databases(name), Databases(f"{name} counting", COUNT_TIMEOUT)
        self._watching = Databases(f"{name} watching", COUNT_TIMEOUT)

    def preflight(self) -> None:
        """Raise for wrong options, tables or credentials. A database that does not answer yet is retried later."""
        for name in self.settings.destinations:
            self._publisher(name)
        preflight = Preflight("source", wait=self.settings.hosting.wait_for_database)
        for name, source in self.settings.sources.items():
            try:
                self._check_source(name, source)
            except (psycopg.Error, DatabaseRefused) as error:
                preflight.failed(name, error)
        preflight.refuse()

    def problems(self) -> list[str]:
        """Sources and destinations that do not answer or refuse access, and why."""
        found = []
        checks = self._databases.each(
            self._urls(), lambda name: self._check_source(name, self.settings.sources[name])
        )
        for name, answer in checks.items():
            if answer is not None:
                found.append(f"source {name}: {line(answer)}")
        for name in self.settings.destinations:
            try:
                self._publisher(name).check(CHECK_TIMEOUT)
            except OutsparkError as error:
                # Most publishers begin their messages with their own name.
                found.append(f"destination {name}: {line(error).removeprefix(f'destination {name}: ')}")
        return found

    def watch(self, tally: Tally) -> None:
        """Check that events move. A source that does not answer counts as not stuck: `problems` reports it."""
        answers = self._watching.each(self._urls(), lambda name: self._watch(name, tally))
        self._stuck = {name: [] if isinstance(one, Exception) else one for name, one in answers.items()}

    def forget(self) -> None:
        """Restart the progress checks. While another problem is known, events that do not move are no news."""
        self._stuck = {}
        for progress in list(self._progress.values()):
            progress.forget()

    def stuck(self, lanes: Iterable[str] = ()) -> list[str]:
        """Sources whose checks succeed while no event moves. `lanes` are the problems that lanes reported."""
        why = "".join(f"; a lane says: {one}" for one in dict.fromkeys(lanes))
        return [f"source {name}: {one}{why}" for name, every in self._stuck.items() for one in every]

    @property
    def poll_interval(self) -> float:
        return self._deadlines().poll_interval

    def stats(self) -> dict[str, Stats | str]:
        """Source -> its stats, or why they could not be read."""
        answers = self._counting.each(self._urls(), self._stats)
        return {name: line(one) if isinstance(one, Exception) else one for name, one in answers.items()}

    def gauge(self, tally: Tally) -> None:
        answers = self._counting.each(self._urls(), self._gauges)
        for name, gauges in answers.items():
            if isinstance(gauges, Exception):
                log.debug(
                    "the driver could not read the gauges", extra={"source": name, "error": line(gauges)}
                )
            else:
                for gauge in gauges:
                    tally.set(gauge.name, gauge.value, source=name, **gauge.labels)
        keyed = [name for name, source in self.settings.sources.items() if source.ordering == "key"]
        urls = {name: url for name, url in self._urls().items() if name in keyed}
        for name, owned in self._counting.each(urls, self._owned).items():
            tally.set(metrics.SLOTS_OWNED, 0 if isinstance(owned, Exception) else owned, source=name)

    def drained(self) -> bool:
        """True when no event is in flight and all pending events are scheduled for later."""
        every = self.stats().values()
        return all(
            isinstance(one, Stats) and one.pending == one.scheduled and one.delivering == 0 for one in every
        )

    def send_stop(self) -> bool:
        """Notify all lanes to stop; False when no database could be reached, so that no lane has received it."""
        return self._databases.send_stop(self._urls(), self.channel)

    def lanes_at_work(self, number: int) -> set[int]:
        return self._databases.lanes_at_work(self._urls(), number)

    def query(self, statement: str, parameters: dict[str, Any]) -> list[str]:
        return self._databases.query(self._urls(), statement, parameters)

    def release_locks(self) -> None:
        """Release the ShedLock rows for other relays. Call it only when all lanes of this run have ended."""
        locked = {
            name: url
            for name, url in self._urls().items()
            if (source := self.settings.sources[name])
            and contracts.get(source.contract).lock_table(TableName.parse(source.table)) is not None
        }
        for name, answer in self._databases.each(locked, self._release_lock).items():
            if answer is not None:
                log.warning(
                    "the driver could not release the lock; it expires by itself",
                    extra={"source": name, "error": line(answer)},
                )

    def close(self) -> None:
        self._databases.close()
        self._counting.close()
        self._watching.close()
        with self._lock:
            for publisher in self._publishers.values():
                publisher.close()

    def _check_source(self, name: str, source: SourceSettings) -> None:
        """Check privileges, and the table until it was valid once: a database may have been down at the preflight."""
        with self._use(source) as conn:
            table = resolve(conn, TableName.parse(source.table))
            self._check_privileges(name, source, conn, table)
            if name not in self._checked:
                self._check_table(name, source, conn, table)
                self._checked.add(name)

    def _check_privileges(
        self, name: str, source: SourceSettings, conn: Connection, table: TableName
    ) -> None:
        """Run at every check: a privilege may be revoked, and a lane without it cannot claim."""
        needs = privileges.relay_needs(
            contracts.get(source.contract),
            table,
            ordered=source.ordering == "key",
            fans_out=self.settings.fans_out(name),
        )
        if lacks := privileges.lacking(conn, needs):
            raise DatabaseRefused(" ".join(lacks))

    def _check_table(self, name: str, source: SourceSettings, conn: Connection, table: TableName) -> None:
        self._identities.claim(conn, name, table)
        contract = contracts.get(source.contract)
        findings = contract.check_table(conn, table, contract.ignored(source))
        refuse_errors(table, findings)
        for finding in findings:
            log.warning(finding.problem, extra={"source": name, "remedy": finding.remedy})
        number = zlib.crc32(self.settings.relay.id.encode()) & 0x7FFFFFFF
        row = conn.execute(
            SAME_ID, {"class": zlib.crc32(b"outspark/relay") & 0x7FFFFFFF, "id": number}
        ).fetchone()
        if row is not None and not row[0]:
            log.warning(
                "another relay with this id is at work on this database; delivery is not affected, because claims "
                "carry the run as well, but give each relay its own relay.id to tell them apart",
                extra={"relay": self.settings.relay.id, "source": name},
            )

    def _stats(self, name: str) -> Stats:
        source = self.settings.sources[name]
        with self._counting.use(source.url.get_secret_value()) as conn:
            table = resolve(conn, TableName.parse(source.table))
            return contracts.get(source.contract).maintenance(table).stats(conn, exact=False)

    def _gauges(self, name: str) -> list[Gauge]:
        source = self.settings.sources[name]
        with self._counting.use(source.url.get_secret_value()) as conn:
            maintenance = contracts.get(source.contract).maintenance(
                resolve(conn, TableName.parse(source.table))
            )
            stats = maintenance.stats(conn, exact=False)
            others = maintenance.gauges(conn, stats)
        age = stats.oldest_age.total_seconds() if stats.oldest_age else 0.0
        pending = Gauge(metrics.PENDING_COUNT, stats.pending)
        return [pending, Gauge(metrics.OLDEST_AGE_SECONDS, age), *others]

    def _owned(self, name: str) -> int:
        source = self.settings.sources[name]
        with self._counting.use(source.url.get_secret_value()) as conn:
            table = resolve(conn, TableName.parse(source.table))
            statement = slot_statements.compose(slot_statements.OWNED, table)
            row = conn.execute(
                statement, {"source": str(table), "instance": f"instance={self.instance}"}
            ).fetchone()
            return int(row[0]) if row else 0

    def _watch(self, name: str, tally: Tally) -> list[str]:
        source = self.settings.sources[name]
        if name not in self._progress:
            self._progress[name] = Progress(source, self.instance, self._deadlines())
        settled = tally.value(metrics.EVENTS_TOTAL, source=name)
        with self._watching.use(source.url.get_secret_value()) as conn:
            table = resolve(conn, TableName.parse(source.table))
            return self._progress[name].problems(conn, table, settled)

    def _deadlines(self) -> Deadlines:
        publishers = [self._publisher(name) for name in self.settings.destinations]
        return Deadlines(self.settings, all(publisher.keeps_order for publisher in publishers))

    def _release_lock(self, name: str) -> None:
        source = self.settings.sources[name]
        with self._use(source) as conn:
            table = resolve(conn, TableName.parse(source.table))
            lock = relay_lock(conn, table, source, self.settings.relay.id, self.instance)
            if lock is not None:
                lock.release()

    def _urls(self) -> dict[str, str]:
        return {name: source.url.get_secret_value() for name, source in self.settings.sources.items()}

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
