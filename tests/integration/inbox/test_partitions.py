"""Partitions are there before they are needed, and go when all in them is final and old."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from outspark.contracts.omnibox.table import kind
from outspark.database import partitions as layout
from outspark.database.names import TableName, resolve
from outspark.maintenance.partitions import Changes, Partitions
from tests.databases import Database
from tests.integration.contracts.catalog import catalog
from tests.waiting import wait_for

DAY = timedelta(days=1)


class Table:
    def __init__(self, database: Database, *, inbox: bool) -> None:
        self.database = database
        self.conn = database.connect()
        made = kind(inbox=inbox, partitioned=True)
        self.name = str(made.default_table)
        self.inbox = inbox
        for statement in made.statements():
            self.conn.execute(statement.encode())

    def keeper(self, **options: Any) -> Partitions:
        return Partitions(self.database.connect(), self.name, **options)

    def names(self) -> list[str]:
        table = resolve(self.conn, TableName.parse(self.name))
        return [one.name.removeprefix(self.name) for one in layout.read(self.conn, table).partitions]

    def make(self, first: datetime, last: datetime, name: str = "old") -> None:
        query = f"CREATE TABLE {name} PARTITION OF {self.name} FOR VALUES FROM ('{first}') TO ('{last}')"
        self.conn.execute(query.encode())

    def add(self, at: datetime, status: str = "completed", ended: datetime | None = None) -> None:
        own = (
            "message_id, consumer_group, source"
            if self.inbox
            else "aggregate_type, aggregate_id, topic, partition_key"
        )
        values = "gen_random_uuid(), 'g', 's'" if self.inbox else "'a', gen_random_uuid(), 't', 'k'"
        self.conn.execute(
            f"INSERT INTO {self.name} (id, event_type, payload, scheduled_at, created_at, updated_at, status, "
            f"completed_at, {own}) VALUES (gen_random_uuid(), 't', '{{}}', %s, %s, %s, %s, %s, {values})".encode(),
            [at, at, ended or at, status, (ended or at) if status == "completed" else None],
        )


@pytest.fixture(params=["inbox", "outbox"])
def table(request: pytest.FixtureRequest, database: Database) -> Table:
    return Table(database, inbox=request.param == "inbox")


def today() -> datetime:
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def test_partitions_are_created_ahead_and_only_once(table: Table) -> None:
    days = [f"_p{(today() + n * DAY):%Y%m%d}" for n in range(4)]

    assert table.keeper().run_once().created == tuple(table.name + day for day in days)
    assert table.names() == days
    assert table.keeper().run_once().created == ()


@pytest.mark.parametrize("every", ["hour", "week", "month"])
def test_partitions_of_other_lengths(table: Table, every: Any) -> None:
    table.keeper(every=every, ahead=2).create_ahead()

    assert len(table.names()) == 3
    table.add(datetime.now(UTC))


def test_a_partition_has_all_that_the_table_has(table: Table) -> None:
    table.keeper(ahead=0).create_ahead()
    reference = (
        f"CREATE TABLE reference PARTITION OF {table.name} FOR VALUES FROM ('2001-01-01') TO ('2001-01-02')"
    )
    table.conn.execute(reference.encode())

    ours, theirs = (catalog(table.conn, name) for name in (table.name + table.names()[-1], "reference"))

    assert ours.columns == theirs.columns
    assert sorted(row[4] for row in ours.constraints) == sorted(row[4] for row in theirs.constraints)
    assert len(ours.indexes) == len(theirs.indexes)


def test_gaps_beside_partitions_of_another_making_are_closed(table: Table) -> None:
    table.make(today() + timedelta(hours=6), today() + timedelta(hours=30))

    table.keeper(ahead=1).create_ahead()

    found = layout.read(table.conn, resolve(table.conn, TableName.parse(table.name)))
    assert found.ranges() == [
        (today(), today() + timedelta(hours=6)),
        (today() + timedelta(hours=6), today() + timedelta(hours=30)),
        (today() + timedelta(hours=30), today() + 2 * DAY),
    ]


def test_what_is_final_and_old_goes(table: Table) -> None:
    table.make(today() - 30 * DAY, today() - 29 * DAY)
    table.add(today() - 30 * DAY)
    table.add(today() - 30 * DAY, "failed")

    assert table.keeper(retention=40 * DAY).run_once().dropped == ()
    assert table.keeper(retention=7 * DAY).run_once().dropped == ("old",)
    assert table.conn.execute("SELECT to_regclass('old')").fetchone() == (None,)


def test_without_retention_all_stays(table: Table) -> None:
    table.make(today() - 30 * DAY, today() - 29 * DAY)

    assert table.keeper().run_once().dropped == ()


@pytest.mark.parametrize("what", ["pending", "just completed", "just failed"])
def test_what_is_not_final_or_not_old_keeps_its_partition(table: Table, what: str) -> None:
    table.make(today() - 30 * DAY, today() - 29 * DAY)
    table.add(today() - 30 * DAY)
    now = datetime.now(UTC)
    table.add(today() - 30 * DAY, what.removeprefix("just "), ended=None if what == "pending" else now)

    assert table.keeper(retention=7 * DAY).run_once().dropped == ()


def test_what_opens_again_at_the_last_moment_keeps_its_partition(table: Table) -> None:
    """As if it had been requeued between the first look and the lock."""
    table.make(today() - 30 * DAY, today() - 29 * DAY)
    table.add(today() - 30 * DAY, "pending")

    class Hasty(Partitions):
        def _finished(self, partition: Any, before: datetime) -> bool:
            return True

    hasty = Hasty(table.database.connect(), table.name, retention=7 * DAY)

    assert hasty.drop_finished() == ([], [])
    assert "old" in "".join(table.names())


def test_a_partition_in_use_is_left_for_another_time(table: Table) -> None:
    table.make(today() - 30 * DAY, today() - 29 * DAY)
    with psycopg.connect(table.database.url) as other:
        other.execute(f"SELECT count(*) FROM {table.name}".encode())

        changes = table.keeper(retention=7 * DAY, lock_timeout=timedelta(milliseconds=50)).run_once()

    assert changes.busy == ("old",)
    assert table.keeper(retention=7 * DAY).run_once().dropped == ("old",)


@pytest.mark.parametrize("mode", ["ACCESS EXCLUSIVE", "SHARE"])
def test_a_table_that_somebody_holds_is_left_for_another_time(table: Table, mode: str) -> None:
    shortly = timedelta(milliseconds=50)
    with psycopg.connect(table.database.url) as other:
        other.execute(f"LOCK TABLE {table.name} IN {mode} MODE".encode())

        changes = table.keeper(ahead=1, lock_timeout=shortly).run_once()

    assert (changes.created, len(changes.busy)) == ((), 2)
    assert len(table.keeper(ahead=1, lock_timeout=shortly).run_once().created) == 2


def test_who_waits_for_a_lock_holds_up_others_only_shortly(table: Table) -> None:
    """A reader holds the table, a keeper waits behind it, and a writer behind the keeper."""
    table.keeper(ahead=0).create_ahead()
    table.make(today() - 30 * DAY, today() - 29 * DAY)
    keeper = table.keeper(retention=7 * DAY, lock_timeout=timedelta(seconds=1))
    with psycopg.connect(table.database.url) as reader:
        reader.execute(f"SELECT count(*) FROM {table.name}".encode())
        thread = threading.Thread(target=keeper.drop_finished)
        thread.start()
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
        wait_for(lambda: table.conn.execute(waits).fetchone() == (1,), what="the keeper to wait")
        with psycopg.connect(table.database.url) as writer:
            writer.execute("SET lock_timeout = '20s'")
            writer.execute(f"UPDATE {table.name} SET updated_at = now()".encode())
        thread.join()

    assert keeper.drop_finished() == (["old"], [])


def test_two_keepers_at_once(table: Table) -> None:
    table.make(today() - 30 * DAY, today() - 29 * DAY)
    keepers = [table.keeper(retention=7 * DAY, ahead=5) for _ in range(3)]
    start = threading.Barrier(3)

    def keep(keeper: Partitions) -> Changes:
        start.wait()
        return keeper.run_once()

    with ThreadPoolExecutor(3) as pool:
        changes = list(pool.map(keep, keepers))

    assert len([name for change in changes for name in change.created]) == 6
    assert [name for change in changes for name in change.dropped] == ["old"]
    assert len(table.names()) == 6


def test_creating_waits_for_no_writer(table: Table) -> None:
    table.keeper(ahead=0).create_ahead()
    with psycopg.connect(table.database.url) as other:
        query = f"UPDATE {table.name} SET updated_at = now()"
        other.execute(query.encode())

        changes = table.keeper(ahead=1, lock_timeout=timedelta(milliseconds=200)).run_once()

    assert len(changes.created) == 1
