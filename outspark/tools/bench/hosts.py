"""Starts what delivers: bare lanes in plain processes, or the relay on Spark, until they own every slot."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import psycopg
from psycopg import sql

from outspark.config.settings import Lease
from outspark.database.slots import slots_table
from outspark.errors import OutsparkError
from outspark.tools.bench.backlog import Connection
from outspark.tools.bench.children import Children
from outspark.tools.bench.plan import Plan
from outspark.tools.bench.tables import OPENOUTBOX, Table

Host = Literal["bare", "spark"]

START_TIMEOUT = 240.0
# An idle lane looks again after this: whoever reveals a backlog does not wait for the first look.
EAGER = "20ms"
# Spark takes processes that were stopped for minutes for dead ones.
PATIENT = {"spark.network.timeout": "24h"}

EPOCHS = """
-- How many slots have an owner, the fewest times one was taken, and how often all of them were
SELECT count(*) FILTER (WHERE NOT clean), coalesce(min(epoch), 0), coalesce(sum(epoch), 0)::int FROM {slots_table}"""


@dataclass(slots=True)
class Hosts:
    """Lanes at work on one database. Ready means warm: on Spark, each lane has handed over once already."""

    host: Host
    url: str
    plan: Plan
    table: Table = OPENOUTBOX
    lease: Lease = "row"
    destinations: Mapping[str, Any] = field(default_factory=lambda: {"bench": {"type": "null"}})
    routes: Sequence[Mapping[str, str]] = ()
    one_by_one: bool = False
    """Bare lanes only: each event is published by itself."""
    poll_interval: str = EAGER
    doorbell: bool = False
    transform: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    profile: Path | None = None
    """Where the first bare lane writes its profile; it is slower then."""
    _children: Children = field(init=False)

    def __post_init__(self) -> None:
        self._children = Children(self.environ)

    @property
    def pids(self) -> tuple[int, ...]:
        return self._children.pids

    def __enter__(self) -> Self:
        instance = secrets.token_hex(4)
        for lane in range(1 if self.host == "spark" else self.plan.lanes):
            self._children.start(
                "outspark.tools.bench.host",
                {
                    "host": self.host,
                    "lane": lane,
                    "instance": instance,
                    "one_by_one": self.one_by_one,
                    "profile": str(self.profile) if self.profile and lane == 0 else None,
                    "settings": self._settings(),
                },
            )
        try:
            self.await_ready(2 if self.host == "spark" else 1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._children.close()

    def go(self) -> None:
        """Lanes see a backlog by themselves."""

    def pause(self) -> None:
        """Stop the processes as they are; lanes keep what they own."""
        self._children.pause()

    def resume(self) -> None:
        self._children.resume()

    def await_ready(self, shifts: int = 1) -> None:
        """Until every slot has an owner, and was taken by so many shifts."""
        deadline = time.monotonic() + START_TIMEOUT + self.plan.shift
        with psycopg.connect(self.url, autocommit=True) as conn:
            while True:
                owned, taken, _ = self._epochs(conn)
                if owned == self.plan.slots and taken >= shifts:
                    return
                self.check()
                if time.monotonic() >= deadline:
                    raise OutsparkError(
                        f"lanes did not come up; their log ends with:\n{self._children.tail()}"
                    )
                time.sleep(0.05)

    def check(self) -> None:
        self._children.check()

    def handovers(self) -> int:
        """Shifts that followed another one so far, over all lanes."""
        with psycopg.connect(self.url, autocommit=True) as conn:
            return (self._epochs(conn)[2] - self.plan.slots) * self.plan.lanes // self.plan.slots

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
        # A plain process has no successor: its one shift lasts for as long as the bench needs it.
        shift = f"{self.plan.shift:g}s" if self.host == "spark" else "24h"
        return {
            "relay": {"id": "bench"},
            "hosting": {"lanes": self.plan.lanes, "shift": shift, "spark": PATIENT},
            "log": {"level": "warning"},
            "sources": {"bench": source},
            "destinations": dict(self.destinations),
            "routes": list(self.routes),
        }

    def _epochs(self, conn: Connection) -> tuple[int, int, int]:
        """Zeros while the lanes have not made the table yet."""
        table = slots_table(self.table.outbox).identifier
        try:
            row = conn.execute(sql.SQL(EPOCHS).format(slots_table=table)).fetchone()
        except psycopg.errors.UndefinedTable:
            row = None
        return (0, 0, 0) if row is None else (row[0], row[1], row[2])
