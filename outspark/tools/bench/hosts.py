"""Starts the lanes of a relay or an inbox, bare in plain processes or on Spark, and waits until all of them work."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import psycopg
from psycopg import sql

from outspark.config.settings import Lease
from outspark.database.slots import slots_table
from outspark.errors import OutsparkError
from outspark.inbox.lane import Task
from outspark.tools.bench.backlog import Connection
from outspark.tools.bench.children import Children
from outspark.tools.bench.inbox.handlers import APP
from outspark.tools.bench.plan import Plan
from outspark.tools.bench.tables import INBOX, OPENOUTBOX, Table

Host = Literal["bare", "spark"]

START_TIMEOUT = 240.0
# An idle lane polls again after this time, so that a backlog does not wait for its first poll.
EAGER = "20ms"
# Spark would take processes that are stopped for minutes for dead ones.
PATIENT = {"spark.network.timeout": "24h"}
NAME = GROUP = "bench"
"""Of the relay, of the inbox and of its consumer group."""

EPOCHS = """
-- How many slots have an owner, the fewest times one was taken, and how often all of them were
SELECT count(*) FILTER (WHERE NOT clean), coalesce(min(epoch), 0), coalesce(sum(epoch), 0)::int FROM {slots_table}"""

SESSIONS = """
-- The sessions of the lanes, which are named after them
SELECT application_name, pid FROM pg_catalog.pg_stat_activity
WHERE datname = current_database() AND application_name = ANY(%(names)s)"""


@dataclass(slots=True)
class Hosts(ABC):
    """Lanes at work on one database. Ready means warm: on Spark, each lane has handed over once already."""

    host: Host
    url: str
    plan: Plan
    environ: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    _children: Children = field(init=False)
    _conn: Connection = field(init=False)

    def __post_init__(self) -> None:
        self._children = Children(self.environ)

    @property
    def pids(self) -> tuple[int, ...]:
        return self._children.pids

    def __enter__(self) -> Self:
        self._conn = psycopg.connect(self.url, autocommit=True, application_name="outspark bench")
        order = {"host": self.host, "instance": secrets.token_hex(4), "settings": self._settings()}
        for lane in range(1 if self.host == "spark" else self.plan.lanes):
            self._children.start("outspark.tools.bench.host", {**order, "lane": lane, **self._order(lane)})
        try:
            self.await_ready(2 if self.host == "spark" else 1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._children.close()
        self._conn.close()

    def go(self) -> None:  # noqa: B027
        """Nothing to do: lanes find a backlog by themselves."""

    def pause(self) -> None:
        """Stop the processes as they are; lanes keep their slots and sessions."""
        self._children.pause()

    def resume(self) -> None:
        self._children.resume()

    def await_ready(self, shifts: int = 1) -> None:
        """Until all lanes work, and each has had at least so many shifts."""
        deadline = time.monotonic() + START_TIMEOUT + self.plan.shift
        while not self._is_ready(shifts):
            self._children.check()
            if time.monotonic() >= deadline:
                raise OutsparkError(f"lanes did not come up; their log ends with:\n{self._children.tail()}")
            time.sleep(0.05)

    def check(self) -> None:
        self._children.check()

    @abstractmethod
    def handovers(self) -> int:
        """Shifts that followed another one so far, over all lanes."""

    @abstractmethod
    def _is_ready(self, shifts: int) -> bool: ...

    @abstractmethod
    def _order(self, lane: int) -> dict[str, Any]:
        """What `bench/host.py` has to know besides the settings."""

    def _settings(self) -> dict[str, Any]:
        # A plain process has no successor: its one shift lasts for as long as the bench needs it.
        shift = f"{self.plan.shift:g}s" if self.host == "spark" else "24h"
        return {
            "relay": {"id": NAME},
            "hosting": {"lanes": self.plan.lanes, "shift": shift, "spark": PATIENT},
            "log": {"level": "warning"},
        }


@dataclass(slots=True)
class RelayHosts(Hosts):
    """Lanes of a relay. Which of them work is read from the owners of the slots."""

    table: Table = OPENOUTBOX
    lease: Lease = "row"
    destinations: Mapping[str, Any] = field(default_factory=lambda: {"bench": {"type": "null"}})
    routes: Sequence[Mapping[str, str]] = ()
    one_by_one: bool = False
    """Bare lanes only: each event is published by itself."""
    poll_interval: str = EAGER
    doorbell: bool = False
    transform: str | None = None
    profile: Path | None = None
    """Where the first bare lane writes its profile; that lane is slower then."""

    def handovers(self) -> int:
        return (self._epochs()[2] - self.plan.slots) * self.plan.lanes // self.plan.slots

    def _is_ready(self, shifts: int) -> bool:
        owned, taken, _ = self._epochs()
        return owned == self.plan.slots and taken >= shifts

    def _order(self, lane: int) -> dict[str, Any]:
        profile = str(self.profile) if self.profile and lane == 0 else None
        return {"task": None, "one_by_one": self.one_by_one, "profile": profile}

    def _settings(self) -> dict[str, Any]:
        source = {
            "url": self.url,
            "contract": self.table.contract,
            "table": str(self.table.outbox),
            "lease": self.lease,
            "slots": self.plan.slots,
            "batch_size": self.plan.batch,
            "poll_interval": self.poll_interval,
            "doorbell": self.doorbell,
            "transform": self.transform,
        }
        if self.table.contract == "jeap":
            # Not in the middle of a drain, whatever the time of the day.
            source["jeap"] = {"housekeeping": "off"}
        # A dataclass with slots is a new class, which `super()` without arguments does not know.
        return {
            **Hosts._settings(self),
            "sources": {NAME: source},
            "destinations": dict(self.destinations),
            "routes": list(self.routes),
        }

    def _epochs(self) -> tuple[int, int, int]:
        """Zeros while the lanes have not made the table yet."""
        table = slots_table(self.table.outbox).identifier
        try:
            row = self._conn.execute(sql.SQL(EPOCHS).format(slots_table=table)).fetchone()
        except psycopg.errors.UndefinedTable:
            row = None
        return (0, 0, 0) if row is None else (row[0], row[1], row[2])


@dataclass(slots=True)
class InboxHosts(Hosts):
    """Lanes of one inbox and task. Which of them work is read from their sessions at the database."""

    task: Task
    group: str = GROUP
    feed: Mapping[str, Any] | None = None
    _seen: dict[str, set[int]] = field(init=False)
    """Lane -> sessions that it has had; each shift has its own."""

    def __post_init__(self) -> None:
        Hosts.__post_init__(self)
        form = "outspark {}" if self.task == "consume" else "outspark inbox {}"
        self._seen = {form.format(f"bench-{NAME}-{lane}"): set() for lane in range(self.plan.lanes)}

    def check(self) -> None:
        """Also counts the shifts that come and go."""
        Hosts.check(self)
        self._scan()

    def handovers(self) -> int:
        self._scan()
        return sum(max(len(had) - 1, 0) for had in self._seen.values())

    def _is_ready(self, shifts: int) -> bool:
        return self._scan() == self._seen.keys() and all(len(had) >= shifts for had in self._seen.values())

    def _scan(self) -> set[str]:
        """Lanes that have a session now."""
        rows = self._conn.execute(SESSIONS, {"names": list(self._seen)}).fetchall()
        for name, pid in rows:
            self._seen[name].add(pid)
        return {name for name, _ in rows}

    def _order(self, lane: int) -> dict[str, Any]:
        return {"task": self.task, "profile": None}

    def _settings(self) -> dict[str, Any]:
        inbox: dict[str, Any] = {
            "url": self.url,
            "table": str(INBOX.outbox),
            "group": self.group,
            "app": APP,
            "work": {"poll_interval": EAGER},
        }
        if self.feed is not None:
            inbox["feed"] = dict(self.feed)
        return {**Hosts._settings(self), "inboxes": {NAME: inbox}}
