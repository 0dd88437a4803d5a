"""Keeps partitions on a schedule: those of every source and inbox whose settings ask for it, in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import psycopg

from outspark import conninfo
from outspark.errors import OutsparkError
from outspark.partitions import Changes, Every, Partitions
from outspark.settings import Settings, SourceSettings
from outspark.settings.inbox import InboxSettings, PartitionSettings

log = logging.getLogger(__name__)

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
        # soon would only stand in everybody's way.
        return interval(self.tables[name][1].every)
