"""Where a history of an inbox is played: a table, a topic, the groups that take from it, and their lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import psycopg
from psycopg import sql

from outspark.config.inbox import Strategy
from outspark.config.settings import Settings
from outspark.contracts.omnibox.table import kind
from outspark.inbox.lane import InboxLaneSpec, Task, inbox_lanes
from outspark.maintenance.partitions import Partitions
from tests.databases import Database
from tests.history.inbox.brokers import PARTITIONS, Broker
from tests.history.inbox.conduct import Conduct
from tests.history.inbox.drafts import Draft
from tests.history.inbox.handlers import APP
from tests.history.inbox.history import Effect, History, Row, Rules
from tests.history.inbox.hosting import Host
from tests.history.inbox.journal import Deed, Entry, Journal
from tests.waiting import wait_for

# No key on the effects: one that happens twice shows.
PREPARE = """\
-- What a history needs beside the inbox: the service's own table, and what tells the order of acceptance
CREATE TABLE effects (position bigserial, name text NOT NULL, consumer_group text NOT NULL, process text NOT NULL);
ALTER TABLE {table} ADD COLUMN accepted bigserial;
CREATE FUNCTION refuse_first() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.status = 'completed' AND OLD.attempts_made = 0 AND NEW.payload ->> 'do' = 'refuse first' THEN
    RAISE EXCEPTION 'refused on purpose';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER refuse_first BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION refuse_first()"""

# What failed has no attempts left, whatever made it fail; here those count that were used up.
ROWS = """\
-- What the inbox says in the end
SELECT coalesce(payload ->> 'name', split_part(payload ->> 'raw', ' ', 2)), consumer_group, status,
       CASE WHEN status = 'failed' AND last_error !~ '^(gave up after|worker .* vanished|lock of .* ran out)' THEN 0
            ELSE attempts_made END,
       accepted, locked_by
FROM {table}"""

CUT = """\
-- End all sessions of the lanes at once
SELECT count(*) FROM (
  SELECT pg_terminate_backend(pid) FROM pg_stat_activity
  WHERE datname = current_database() AND application_name LIKE 'outspark%') AS cut"""

BATCH_SIZE = 8
MAX_ATTEMPTS = 6
INBOXES = ("billing", "shipping")


@dataclass(slots=True)
class Harness:
    database: Database
    broker: Broker
    topic: str
    settings: Settings
    conduct: Conduct
    host: Host
    rules: Rules
    published: dict[str, Draft] = field(default_factory=dict)
    cuts: int = 0

    @property
    def groups(self) -> tuple[str, ...]:
        return self.rules.groups

    def publish(self, *drafts: Draft, partition: int | None = None) -> None:
        """To the partition of each one's key, or to this one; what was published before is published again."""
        self.published.update({draft.name: draft for draft in drafts})
        where = [(draft, _partition(draft) if partition is None else partition) for draft in drafts]
        self.broker.publish(self.topic, where)

    def tick(self) -> None:
        self.host.tick()

    def wait_for(self, condition: Callable[[], object], timeout: float = 30.0, what: str = "it") -> None:
        """While the lanes are kept up."""

        def ticking() -> bool:
            self.tick()
            return bool(condition())

        wait_for(ticking, timeout=timeout, what=what)

    def finish(self) -> None:
        """Let all come to its end, and stop the lanes. What was on its way when they stopped is waited for, too."""
        for _ in range(5):
            self.wait_for(self.finished, timeout=60, what="the end of all messages")
            self.host.stop()
            if self.finished():
                return
        raise AssertionError("lanes leave something behind whenever they are stopped")

    def finished(self) -> bool:
        waiting = "SELECT count(*) FROM {table} WHERE status = 'pending'"
        return self.ask(waiting) == [(0,)] and self.broker.drained(self.topic, self.groups)

    def cut(self) -> None:
        """Every lane loses its sessions."""
        self.ask(CUT)
        self.cuts += len(self.host.specs)

    def did(self, deed: Deed, name: str | None = None) -> list[Entry]:
        return [entry for entry in self.entries() if entry.deed == deed and name in (None, entry.name)]

    def entries(self) -> list[Entry]:
        journal = Journal(self.conduct.journal)
        try:
            return journal.read()
        finally:
            journal.close()

    def ask(self, query: str, **parameters: Any) -> list[tuple[Any, ...]]:
        composed = sql.SQL(query).format(table=sql.Identifier(self.conduct.table))
        with psycopg.connect(self.database.url, autocommit=True) as conn:
            return conn.execute(composed, parameters or None).fetchall()

    def history(self) -> History:
        effects = self.ask("SELECT name, consumer_group, process FROM effects ORDER BY position")
        return History(
            rules=self.rules,
            published=self.published,
            rows=[Row(*row) for row in self.ask(ROWS)],
            effects=[Effect(*row) for row in effects],
            entries=self.entries(),
            killed=self.host.killed,
            cuts=self.cuts,
        )


def _partition(draft: Draft) -> int:
    return sum((draft.key or draft.name).encode()) % PARTITIONS


def build_stage(
    database: Database,
    folder: Path,
    broker: Broker,
    strategy: Strategy = Strategy.EXACTLY_ONCE,
    *,
    ordering: Literal["key", "none"] = "none",
    partitioned: bool = False,
    inboxes: Sequence[str] = INBOXES,
    consumers: int = 1,
    workers: int = 2,
    shift: str = "600s",
    retry: str = "100ms",
    variant: str | None = None,
    **conduct: Any,
) -> Harness:
    table = kind(inbox=True, partitioned=partitioned)
    topic = f"history-{uuid4().hex}"
    broker.open_topic(topic)
    _create(database, partitioned)
    settings = Settings.model_validate(
        {
            "relay": {"id": "test"},
            "hosting": {"shift": shift},
            "inboxes": {
                name: {
                    "url": database.url,
                    "table": str(table.default_table),
                    # Of this history alone: Kafka remembers the members of a group for a while.
                    "group": f"{name}-{topic}",
                    "strategy": strategy,
                    "app": APP,
                    "max_attempts": MAX_ATTEMPTS,
                    "feed": {**broker.feed(topic), "batch_size": BATCH_SIZE},
                    "work": {
                        "ordering": ordering,
                        "slots": 4,
                        "batch_size": 6,
                        "timeout": "20s",
                        "poll_interval": "50ms",
                        "maintenance_interval": "50ms",
                        "retry": {"base_delay": retry, "max_delay": retry, "jitter": 0.0},
                    },
                }
                for name in inboxes
            },
        }
    )
    rules = Rules(
        strategy=strategy,
        groups=tuple(one.group for one in settings.inboxes.values()),
        max_attempts=MAX_ATTEMPTS,
        batch_size=BATCH_SIZE,
        ordering=ordering,
        partitioned=partitioned,
    )
    common = Conduct(folder / "journal", database.url, str(table.default_table), **conduct)
    host = Host(_specs(settings, consumers, workers), database.url, common, variant)
    return Harness(database, broker, topic, settings, common, host, rules)


def _create(database: Database, partitioned: bool) -> None:
    table = kind(inbox=True, partitioned=partitioned)
    conn = database.connect()
    for statement in table.statements():
        conn.execute(statement.encode())
    conn.execute(sql.SQL(PREPARE).format(table=table.default_table.identifier))
    if partitioned:
        Partitions(conn, table.default_table, ahead=1).create_ahead()


def _specs(settings: Settings, consumers: int, workers: int) -> list[InboxLaneSpec]:
    """Both tasks in one run, each with lanes of its own number."""
    specs: list[InboxLaneSpec] = []
    wanted: list[tuple[Task, int]] = [("consume", consumers), ("handle", workers)]
    for task, lanes in wanted:
        these = settings.model_copy(update={"hosting": settings.hosting.model_copy(update={"lanes": lanes})})
        instance = settings.inboxes[next(iter(settings.inboxes))].group[-8:]
        specs += inbox_lanes(these, list(settings.inboxes), [task], instance, {})
    return [replace(spec, lane=lane) for lane, spec in enumerate(specs)]


@contextmanager
def open_harness(*args: Any, **options: Any) -> Iterator[Harness]:
    harness = build_stage(*args, **options)
    try:
        yield harness
    finally:
        harness.host.abandon()
