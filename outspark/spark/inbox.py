"""An inbox as a Spark application: it consumes messages, handles events, or both."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from typing import Any

import psycopg

from outspark.brokers import open_feed
from outspark.config.inbox import InboxSettings
from outspark.config.settings import Settings
from outspark.contracts import privileges
from outspark.contracts.maintenance import Stats
from outspark.contracts.omnibox.inbox import resolve_inbox
from outspark.contracts.omnibox.inbox_guard import PausedType, paused_types
from outspark.contracts.omnibox.inbox_maintenance import InboxMaintenance
from outspark.contracts.omnibox.table import check_table
from outspark.database.check import refuse_errors
from outspark.database.names import TableName
from outspark.errors import DatabaseRefused, OutsparkError
from outspark.inbox.lane import Task, inbox_lanes
from outspark.inbox.router import load_router
from outspark.observability import metrics, otel
from outspark.redaction import redact
from outspark.spark.app import SparkApplication
from outspark.spark.databases import Databases, line
from outspark.spark.identity import Identities
from outspark.spark.monitor import COUNT_TIMEOUT, as_json
from outspark.spark.preflight import Preflight

CHECK_TIMEOUT = 2.0
TASK_NEEDS: dict[Task, str] = {"consume": "INSERT", "handle": "UPDATE"}
"""Task -> the privilege that it needs besides SELECT."""


class InboxApp(SparkApplication):
    """The lanes of the named inboxes. `tasks` says what the lanes do: "consume", "handle" or both."""

    kind = "inbox"

    def __init__(self, settings: Settings, names: Sequence[str], tasks: Sequence[Task]) -> None:
        instance = secrets.token_hex(4)
        specs = inbox_lanes(settings, names, tasks, instance, otel.variables(os.environ))
        self._inboxes = {name: settings.inboxes[name] for name in names}
        self._tasks = tasks
        self._identities = Identities("inboxes")
        name = f"outspark {settings.relay.id} driver"
        self._databases, self._counting = Databases(name), Databases(f"{name} counting", COUNT_TIMEOUT)
        super().__init__(settings, instance, specs)

    def ready(self) -> list[str]:
        found = []
        checks = self._databases.each(self._urls(), lambda name: self._check_inbox(name, self._inboxes[name]))
        for name, inbox in self._inboxes.items():
            if (answer := checks[name]) is not None:
                found.append(f"inbox {name}: {line(answer)}")
            try:
                self._check_feed(name, inbox)
            except OutsparkError as error:
                found.append(f"feed of {name}: {line(error)}")
        return found + [
            f"inbox {name}: {redact(str(one))}" for name, every in self._paused().items() for one in every
        ]

    def drained(self) -> bool:
        """True when no type is paused, no event is in flight and all pending ones are scheduled or in backoff."""
        every = self._stats().values()
        return not any(self._paused().values()) and all(
            isinstance(one, Stats) and one.pending == one.scheduled + one.backoff and not one.delivering
            for one in every
        )

    def stats(self) -> dict[str, Any]:
        paused = self._paused()
        inboxes = {
            name: {**as_json(one), "paused": [type.to_json() for type in paused.get(name, ())]}
            for name, one in self._stats().items()
        }
        return {**super().stats(), "inboxes": inboxes}

    def _preflight(self) -> None:
        preflight = Preflight("inbox", wait=self.settings.hosting.wait_for_database)
        for name, inbox in self._inboxes.items():
            if "handle" in self._tasks and inbox.app is not None:
                load_router(inbox.app)
            try:
                self._check_inbox(name, inbox)
            except (psycopg.Error, DatabaseRefused) as error:
                preflight.failed(name, error)
            self._check_feed(name, inbox, only_settings=True)
        preflight.refuse()

    def _check_inbox(self, name: str, inbox: InboxSettings) -> None:
        with self._databases.use(inbox.url.get_secret_value()) as conn:
            table = resolve_inbox(conn, TableName.parse(inbox.table))
            self._identities.claim(conn, name, table, inbox.group)
            wanted = ("SELECT", *(TASK_NEEDS[task] for task in self._tasks))
            if lacks := privileges.lacking(conn, [privileges.Need(table, wanted)]):
                raise DatabaseRefused(" ".join(lacks))
            refuse_errors(table, check_table(conn, table, inbox=True))

    def _check_feed(self, name: str, inbox: InboxSettings, *, only_settings: bool = False) -> None:
        """Opening a feed validates its options; only `check` connects to the broker."""
        if "consume" not in self._tasks or inbox.feed is None:
            return
        feed = open_feed(inbox.feed, inbox.group, f"{self.settings.relay.id}-{name}-check")
        try:
            if not only_settings:
                feed.check(CHECK_TIMEOUT)
        finally:
            feed.close()

    def _send_stop(self) -> bool:
        return self._databases.send_stop(self._urls(), self._specs[0].channel)

    def _lanes_at_work(self) -> set[int]:
        return self._databases.lanes_at_work(self._urls(), self._specs[0].baton[0])

    def _query(self, statement: str, parameters: dict[str, Any]) -> list[str]:
        return self._databases.query(self._urls(), statement, parameters)

    def _gauge(self) -> None:
        for name, stats in self._stats().items():
            if isinstance(stats, Stats):
                age = stats.oldest_age.total_seconds() if stats.oldest_age else 0.0
                self.tally.set(metrics.INBOX_PENDING_COUNT, stats.pending, inbox=name)
                self.tally.set(metrics.INBOX_OLDEST_AGE_SECONDS, age, inbox=name)
                self.tally.set(metrics.INBOX_DEAD_COUNT, stats.dead, inbox=name)
        for name, every in self._paused().items():
            self.tally.set(metrics.INBOX_PAUSED_COUNT, len(every), inbox=name)

    def _ended(self, *, all_lanes: bool) -> None:
        self._databases.close()
        self._counting.close()

    def _paused(self) -> dict[str, list[PausedType]]:
        """Paused event types of each inbox that this application handles. Databases that do not answer are left out."""
        if "handle" not in self._tasks:
            return {}
        guarded = {
            name: url for name, url in self._urls().items() if self._inboxes[name].work.dead_guard.events
        }
        answers = self._databases.each(guarded, self._paused_in)
        return {name: one for name, one in answers.items() if not isinstance(one, Exception)}

    def _paused_in(self, name: str) -> list[PausedType]:
        inbox = self._inboxes[name]
        with self._databases.use(inbox.url.get_secret_value()) as conn:
            table = resolve_inbox(conn, TableName.parse(inbox.table))
            return paused_types(conn, table, inbox.group)

    def _stats(self) -> dict[str, Stats | str]:
        answers = self._counting.each(self._urls(), self._stats_of)
        return {name: line(one) if isinstance(one, Exception) else one for name, one in answers.items()}

    def _stats_of(self, name: str) -> Stats:
        inbox = self._inboxes[name]
        with self._counting.use(inbox.url.get_secret_value()) as conn:
            table = resolve_inbox(conn, TableName.parse(inbox.table))
            return InboxMaintenance(table, inbox.group).stats(conn, exact=False)

    def _urls(self) -> dict[str, str]:
        return {name: inbox.url.get_secret_value() for name, inbox in self._inboxes.items()}
