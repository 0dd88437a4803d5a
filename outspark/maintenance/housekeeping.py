"""Housekeeping of outboxes whose contract has it: once a day, page by page, under the lock that other makes take."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import psycopg

from outspark import contracts
from outspark.config.settings import SourceSettings
from outspark.contracts.contract import Contract, Housekeeping
from outspark.database import conninfo
from outspark.database.names import TableName, resolve
from outspark.database.session import Connection
from outspark.database.shedlock import HOUSEKEEPING, ShedLock
from outspark.errors import OutsparkError
from outspark.maintenance.operations import Maintenance, Pruned, Retention

log = logging.getLogger(__name__)

# A page takes milliseconds; this is what is left of the lock when the next one begins.
PAGE_TIME = 30.0
RETRY_PAUSE = 60.0

SECONDS_LEFT = """\
-- How long until it is that time of day in UTC, on the database's clock
SELECT extract(epoch FROM at - clock_timestamp() + CASE WHEN at > clock_timestamp() THEN '0' ELSE '1 day' END::interval)
  ::float8
FROM (SELECT date_trunc('day', clock_timestamp(), 'UTC') + %(at)s::interval AS at) today"""


@dataclass(slots=True)
class Housekeeper:
    """For the sources of one relay. `run` is the life of a thread."""

    sources: Mapping[str, tuple[SourceSettings, Housekeeping]]
    holder: str
    _due: dict[str, float] = field(default_factory=dict)
    """Source -> when it is its turn, on the monotonic clock."""

    @classmethod
    def of(cls, sources: Mapping[str, SourceSettings], holder: str) -> Housekeeper | None:
        """None where no source asks for it."""
        asked = {name: contracts.get(one.contract).housekeeping(one) for name, one in sources.items()}
        wanted = {name: (sources[name], how) for name, how in asked.items() if how is not None}
        return cls(wanted, holder) if wanted else None

    def run(self, stopping: threading.Event) -> None:
        self._due = dict.fromkeys(self.sources, 0.0)
        planned: set[str] = set()
        while not stopping.wait(max(min(self._due.values()) - time.monotonic(), 0)):
            for name in [name for name, due in self._due.items() if due <= time.monotonic()]:
                self._turn(name, name in planned)
                planned.add(name)

    def clean(self, name: str) -> Pruned | None:
        """Delete what is past its retention; None while another relay is at it."""
        with self._connect(name) as conn:
            return self._clean(conn, name)

    def _turn(self, name: str, planned: bool) -> None:
        """The first turn only finds out when the next one is."""
        try:
            with self._connect(name) as conn:
                if planned:
                    self._clean(conn, name)
                row = conn.execute(SECONDS_LEFT, {"at": self.sources[name][1].at}).fetchone()
            self._due[name] = time.monotonic() + (row[0] if row else RETRY_PAUSE)
        except (psycopg.Error, OutsparkError) as error:
            log.warning("housekeeping failed", extra={"source": name, "error": " ".join(str(error).split())})
            self._due[name] = time.monotonic() + RETRY_PAUSE

    def _clean(self, conn: Connection, name: str) -> Pruned | None:
        source, how = self.sources[name]
        contract = contracts.get(source.contract)
        table = resolve(conn, TableName.parse(source.table))
        lock = self._lock(conn, contract, table, source)
        if lock is not None and not lock.acquire():
            return None
        done = Pruned()
        try:
            maintenance = Maintenance(conn, contract.maintenance(table))
            retention = Retention(delivered=how.delivered, dead=how.dead)
            for so_far in maintenance.prune(retention, how.page_size, how.max_pages):
                done = so_far
                if lock is not None and not lock.hold(min(PAGE_TIME, lock.at_most.total_seconds() / 2)):
                    log.warning("another relay took over the housekeeping", extra={"source": name})
                    break
        finally:
            if lock is not None:
                lock.release()
        log.info("housekeeping", extra={"source": name, "sent": done.delivered, "unsent": done.dead})
        return done

    def _lock(
        self, conn: Connection, contract: Contract, table: TableName, source: SourceSettings
    ) -> ShedLock | None:
        where, at_most = contract.lock_table(table), contract.lock_at_most(source)
        if where is None or at_most is None:
            return None
        return ShedLock(conn, where, HOUSEKEEPING, self.holder, at_most)

    def _connect(self, name: str) -> Connection:
        url = self.sources[name][0].url.get_secret_value()
        return psycopg.connect(
            # ShedLock's times have no zone, and a service may have given its table times that do.
            **conninfo.options(url, application_name="outspark housekeeping", options="-c TimeZone=UTC"),
            autocommit=True,
        )
