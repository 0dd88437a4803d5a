"""Housekeeping of jEAP outboxes: once a day, under the lock that jEAP's own housekeeping takes, page by page."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import psycopg

from outspark import contracts
from outspark.config.settings import SourceSettings
from outspark.contracts.jeap.table import shedlock
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

    sources: Mapping[str, SourceSettings]
    holder: str
    _due: dict[str, float] = field(default_factory=dict)
    """Source -> when it is its turn, on the monotonic clock."""

    @classmethod
    def of(cls, sources: Mapping[str, SourceSettings], holder: str) -> Housekeeper | None:
        """None where no source asks for it."""
        wanted = {
            name: source
            for name, source in sources.items()
            if source.contract == "jeap" and source.jeap.housekeeping != "off"
        }
        return cls(wanted, holder) if wanted else None

    def run(self, stopping: threading.Event) -> None:
        self._due = dict.fromkeys(self.sources, 0.0)
        planned: set[str] = set()
        while not stopping.wait(max(min(self._due.values()) - time.monotonic(), 0)):
            for name in [name for name, due in self._due.items() if due <= time.monotonic()]:
                self._turn(name, name in planned)
                planned.add(name)

    def clean(self, name: str) -> Pruned | None:
        """Delete what is past its retention; None when somebody else is at it."""
        settings = self.sources[name]
        with self._connect(settings) as conn:
            return self._clean(conn, name, settings)

    def _turn(self, name: str, planned: bool) -> None:
        """The first turn only finds out when the next one is."""
        settings = self.sources[name]
        try:
            with self._connect(settings) as conn:
                if planned:
                    self._clean(conn, name, settings)
                row = conn.execute(SECONDS_LEFT, {"at": settings.jeap.housekeeping}).fetchone()
            self._due[name] = time.monotonic() + (row[0] if row else RETRY_PAUSE)
        except (psycopg.Error, OutsparkError) as error:
            log.warning("housekeeping failed", extra={"source": name, "error": " ".join(str(error).split())})
            self._due[name] = time.monotonic() + RETRY_PAUSE

    def _clean(self, conn: Connection, name: str, settings: SourceSettings) -> Pruned | None:
        jeap = settings.jeap
        table = resolve(conn, TableName.parse(settings.table))
        lock = ShedLock(conn, shedlock(table), HOUSEKEEPING, self.holder, jeap.lock_at_most)
        if not lock.acquire():
            return None
        done = Pruned()
        try:
            maintenance = Maintenance(conn, contracts.get(settings.contract).maintenance(table))
            retention = Retention(delivered=jeap.sent_retention, dead=jeap.unsent_retention)
            for so_far in maintenance.prune(retention, jeap.page_size, jeap.max_pages):
                done = so_far
                if not lock.hold(min(PAGE_TIME, jeap.lock_at_most.total_seconds() / 2)):
                    log.warning("housekeeping is another relay's now", extra={"source": name})
                    break
        finally:
            lock.release()
        log.info("housekeeping", extra={"source": name, "sent": done.delivered, "unsent": done.dead})
        return done

    def _connect(self, settings: SourceSettings) -> Connection:
        url = settings.url.get_secret_value()
        return psycopg.connect(
            # ShedLock's times have no zone, and a service may have given its table times that do.
            **conninfo.options(url, application_name="outspark housekeeping", options="-c TimeZone=UTC"),
            autocommit=True,
        )
