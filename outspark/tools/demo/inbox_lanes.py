"""Which process hosts which lane of the inbox, by the lanes' database sessions, and the kill of one of them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import psutil  # type: ignore[import-untyped]
import psycopg
from psycopg import sql

from outspark.contracts.omnibox.inbox import WORKER_PREFIX
from outspark.database.names import TableName, lock_class
from outspark.maintenance.operations import Maintenance
from outspark.tools.demo import billing
from outspark.tools.demo.application import ID, LANES
from outspark.tools.demo.crash import PAUSE, Kill, catch, stopped

Task = Literal["consume", "handle"]

# A lane's session is named after it. A handling lane also holds a lock while it is alive, and has that lock's
# number in its claims.
SESSIONS = """\
-- Sessions of an inbox's lanes, the latest to come first
SELECT a.application_name, a.pid, a.client_port, l.objid::text
FROM pg_catalog.pg_stat_activity a
LEFT JOIN pg_catalog.pg_locks l
  ON l.pid = a.pid AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
  AND l.classid = (%(class)s::bigint & 4294967295)::oid
WHERE a.datname = current_database() AND a.application_name = ANY(%(names)s)
ORDER BY a.backend_start DESC"""

HELD = """\
-- Events that a worker has claimed and neither completed nor settled
SELECT count(*) FROM {table}
WHERE locked_at IS NOT NULL AND status = 'pending' AND starts_with(locked_by, %(prefix)s)"""


@dataclass(frozen=True, slots=True)
class Worker:
    """A lane of the inbox, and the process that hosts it."""

    task: Task
    number: int
    pid: int
    instance: str | None
    """Identifies it in its claims; None before it may claim."""

    @property
    def lane(self) -> str:
        return f"{self.task} {self.number}"


@dataclass(frozen=True, slots=True)
class Workers:
    """Uses a connection of its own; not to be shared between threads. `application` is the inbox's process."""

    conn: psycopg.Connection
    table: TableName
    group: str
    application: int
    maintenance: Maintenance
    _processes: dict[tuple[int, int], int] = field(default_factory=dict)
    """Session and its port -> the process at its other end, which stays the same."""

    @property
    def names(self) -> dict[str, tuple[Task, int]]:
        """The name of each lane's session."""
        consuming: dict[str, tuple[Task, int]] = {
            f"outspark {ID}-{self.group}-{number}": ("consume", number) for number in range(LANES)
        }
        handling: dict[str, tuple[Task, int]] = {
            f"outspark inbox {ID}-{self.group}-{number}": ("handle", number) for number in range(LANES)
        }
        return consuming | handling

    def hosts(self) -> list[Worker]:
        names = self.names
        alive = lock_class(f"inbox-alive/{self.group}", self.table)
        rows = self.conn.execute(SESSIONS, {"class": alive, "names": list(names)}).fetchall()
        found = [
            (names[name], self._process(session, port), instance) for name, session, port, instance in rows
        ]
        return [
            Worker(task, number, pid, instance) for (task, number), pid, instance in found if pid is not None
        ]

    def all_here(self) -> bool:
        """Whether every lane works. A worker may claim once it holds its lock."""
        here = {
            (host.task, host.number)
            for host in self.hosts()
            if host.task == "consume" or host.instance is not None
        }
        return here == set(self.names.values())

    def bills(self) -> int:
        return billing.count(self.conn)

    def kill(self) -> Kill | None:
        """Kills the handling lane that started last, so that its relief is not waiting already."""
        return catch(self._try_kill)

    def _try_kill(self, idle_too: bool) -> Kill | None:
        hosts = self.hosts()
        victim = next((host for host in hosts if host.instance is not None), None)
        if victim is None or victim.instance is None:
            return None
        known = frozenset(host.instance for host in hosts)
        with contextlib.suppress(ProcessLookupError), stopped(victim.pid):
            mid_batch = self._holds_claims(victim.instance)
            if mid_batch or idle_too:
                os.kill(victim.pid, signal.SIGKILL)
                back = partial(self._back, victim, known)
                return Kill(f"lane {victim.lane}", victim.pid, mid_batch, time.monotonic(), back)
        return None

    def _back(self, victim: Worker, known: frozenset[str | None]) -> int | None:
        """A new process hosts the lane, and the claims of the killed one were released.

        The shift before the killed one may not have ended yet; it does not count.
        """
        hosts = (
            host.pid
            for host in self.hosts()
            if host.lane == victim.lane and host.instance is not None and host.instance not in known
        )
        pid = next(hosts, None)
        return None if pid is None or self._held(victim.instance or "") else pid

    def _holds_claims(self, instance: str) -> bool:
        """By the second scan the server has finished what it was doing for the stopped process."""
        if not self._held(instance):
            return False
        time.sleep(PAUSE)
        return self._held(instance) > 0

    def _held(self, instance: str) -> int:
        statement = sql.SQL(HELD).format(table=self.table.identifier)
        row = self.conn.execute(statement, {"prefix": f"{WORKER_PREFIX}{instance}/"}).fetchone()
        assert row is not None
        return int(row[0])

    def _process(self, session: int, port: int) -> int | None:
        key = session, port
        if key not in self._processes:
            pid = _at(port, self.application)
            if pid is None:
                return None
            self._processes[key] = pid
        return self._processes[key]


def _at(port: int, application: int) -> int | None:
    """The child of the application, or its child, whose connection has this port."""
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(application).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any(one.laddr.port == port for one in process.net_connections("tcp4") if one.laddr):
                    return int(process.pid)
    return None
