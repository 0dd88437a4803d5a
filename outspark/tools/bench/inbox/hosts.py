"""Starts what takes in or handles: bare lanes in plain processes, or an inbox on Spark, until each lane is there."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import psycopg

from outspark.errors import OutsparkError
from outspark.inbox.lane import Task
from outspark.tools.bench.backlog import Connection
from outspark.tools.bench.children import Children
from outspark.tools.bench.hosts import EAGER, PATIENT, START_TIMEOUT, Host
from outspark.tools.bench.inbox.handlers import APP
from outspark.tools.bench.plan import Plan
from outspark.tools.bench.tables import Table

NAME = GROUP = "bench"

SESSIONS = """
-- The sessions of the lanes, which are named after them
SELECT application_name, pid FROM pg_catalog.pg_stat_activity
WHERE datname = current_database() AND application_name = ANY(%(names)s)"""


@dataclass(slots=True)
class InboxHosts:
    """Lanes of one inbox and task. Ready means warm: on Spark, each lane has handed over once already."""

    host: Host
    url: str
    plan: Plan
    table: Table
    task: Task
    group: str = GROUP
    feed: Mapping[str, Any] | None = None
    _children: Children = field(default_factory=Children, init=False)
    _seen: dict[str, set[int]] = field(init=False)
    """Lane -> sessions that it has had; each shift has its own."""
    _conn: Connection = field(init=False)

    def __post_init__(self) -> None:
        form = "outspark {}" if self.task == "consume" else "outspark inbox {}"
        self._seen = {form.format(f"bench-{NAME}-{lane}"): set() for lane in range(self.plan.lanes)}

    @property
    def pids(self) -> tuple[int, ...]:
        return self._children.pids

    def __enter__(self) -> Self:
        self._conn = psycopg.connect(self.url, autocommit=True, application_name="outspark bench")
        instance = secrets.token_hex(4)
        order = {"host": self.host, "task": self.task, "inbox": NAME, "instance": instance}
        for lane in range(1 if self.host == "spark" else self.plan.lanes):
            self._children.start(
                "outspark.tools.bench.inbox.host", {**order, "lane": lane, "settings": self._settings()}
            )
        try:
            self.await_ready(2 if self.host == "spark" else 1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._children.close()
        self._conn.close()

    def go(self) -> None:
        """Lanes see by themselves what there is to do."""

    def pause(self) -> None:
        """Stop the processes as they are; lanes keep their sessions."""
        self._children.pause()

    def resume(self) -> None:
        self._children.resume()

    def await_ready(self, shifts: int = 1) -> None:
        """Until each lane has had so many shifts, and is there."""
        deadline = time.monotonic() + START_TIMEOUT + self.plan.shift
        while True:
            now = self._look()
            if now == self._seen.keys() and all(len(had) >= shifts for had in self._seen.values()):
                return
            self._children.check()
            if time.monotonic() >= deadline:
                raise OutsparkError(f"lanes did not come up; their log ends with:\n{self._children.tail()}")
            time.sleep(0.05)

    def check(self) -> None:
        """Also counts the shifts that come and go."""
        self._children.check()
        self._look()

    def handovers(self) -> int:
        """Shifts that followed another one so far, over all lanes."""
        self._look()
        return sum(max(len(had) - 1, 0) for had in self._seen.values())

    def _look(self) -> set[str]:
        """Lanes that are there now."""
        rows = self._conn.execute(SESSIONS, {"names": list(self._seen)}).fetchall()
        for name, pid in rows:
            self._seen[name].add(pid)
        return {name for name, _ in rows}

    def _settings(self) -> dict[str, Any]:
        inbox: dict[str, Any] = {
            "url": self.url,
            "table": str(self.table.outbox),
            "group": self.group,
            "app": APP,
            "work": {"poll_interval": EAGER},
        }
        if self.feed is not None:
            inbox["feed"] = dict(self.feed)
        # A plain process has no successor: its one shift lasts for as long as the bench needs it.
        shift = f"{self.plan.shift:g}s" if self.host == "spark" else "24h"
        return {
            "relay": {"id": "bench"},
            "hosting": {"lanes": self.plan.lanes, "shift": shift, "spark": PATIENT},
            "log": {"level": "warning"},
            "inboxes": {NAME: inbox},
        }
