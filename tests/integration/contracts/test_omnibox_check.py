"""An omni-box table that departs from the contract is described, and each remedy mends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from outspark.contracts.omnibox.table import MANY, check_table, kind, look_at, ready_index
from outspark.database.check import refuse_errors
from outspark.database.names import TableName
from outspark.errors import TableInvalid
from tests.databases import Database

TABLE = TableName("orders_outbox")
INBOX = TableName("orders_inbox")
SEED = Path(__file__).with_name("omnibox_seed.sql").read_text()
PARTITION = """
CREATE TABLE {name}_p0 PARTITION OF {name} FOR VALUES FROM ('2000-01-01') TO ('2100-01-01')"""
MANY_ROWS = "UPDATE pg_class SET reltuples = %s WHERE oid = %s::regclass"

Make = Callable[[bool], psycopg.Connection]


@pytest.fixture
def make(database: Database) -> Make:
    """An outbox and an inbox, partitioned or not, with a partition where there must be one."""

    def made(partitioned: bool) -> psycopg.Connection:
        conn = database.connect()
        for name, inbox in ((TABLE, False), (INBOX, True)):
            conn.execute(kind(inbox=inbox, partitioned=partitioned).ddl(name))
            if partitioned:
                conn.execute(PARTITION.format(name=name).encode())
        return conn

    return made


@pytest.mark.parametrize("partitioned", [False, True])
def test_tables_of_ours_are_without_findings(make: Make, partitioned: bool) -> None:
    conn = make(partitioned)

    assert check_table(conn, TABLE) == []
    assert check_table(conn, INBOX, inbox=True) == []


def test_the_seeds_tables_are_without_findings(database: Database) -> None:
    conn = database.connect()
    conn.execute(SEED)
    for name in ("outbox_events_partitioned", "inbox_events_partitioned"):
        conn.execute(PARTITION.format(name=name).encode())

    for name in ("outbox_events", "outbox_events_partitioned"):
        assert check_table(conn, TableName(name)) == []
    for name in ("inbox_events", "inbox_events_partitioned"):
        assert check_table(conn, TableName(name), inbox=True) == []


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize(
    ("damage", "level", "problem"),
    [
        ("DROP COLUMN topic", "error", "column topic is missing"),
        ("DROP COLUMN locked_by", "error", "column locked_by is missing"),
        ("ALTER COLUMN payload TYPE text", "error", "column payload is text, not jsonb"),
        ("DROP CONSTRAINT orders_outbox_pkey", "error", "is not unique, so a row could be there twice"),
        (
            "ALTER COLUMN topic TYPE varchar(80)",
            "warning",
            "column topic is character varying(80), not character varying(255)",
        ),
        ("ALTER COLUMN partition_key DROP NOT NULL", "warning", "column partition_key may be NULL"),
        ("ALTER COLUMN max_attempts DROP DEFAULT", "warning", "column max_attempts has no default"),
        (
            "DROP CONSTRAINT ck_orders_outbox_attempts_valid",
            "warning",
            "no CHECK holds that attempts_made <= max_attempts",
        ),
        ("DROP CONSTRAINT ck_orders_outbox_completed_status_consistency", "warning", "no CHECK holds that"),
        ("DROP CONSTRAINT ck_orders_outbox_lock_consistency", "warning", "no CHECK holds that"),
    ],
)
def test_damage_is_found_and_its_remedy_mends_it(
    make: Make, damage: str, level: str, problem: str, partitioned: bool
) -> None:
    conn = make(partitioned)
    conn.execute(f"ALTER TABLE orders_outbox {damage}".encode())

    findings = check_table(conn, TABLE)

    assert findings[0].level == level
    assert problem in findings[0].problem
    for finding in findings:
        conn.execute(finding.remedy.encode())
    assert check_table(conn, TABLE) == []


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_missing_index_is_a_warning_whose_remedy_works(make: Make, partitioned: bool) -> None:
    conn = make(partitioned)
    conn.execute("DROP INDEX idx_orders_outbox_pending_fetch")

    (finding,) = check_table(conn, TABLE)

    assert (finding.level, finding.lacks_index) == ("warning", True)
    assert "idx_orders_outbox_pending_fetch is missing" in finding.problem
    assert ("CONCURRENTLY" in finding.remedy) == (not partitioned)
    conn.execute(finding.remedy.encode())
    assert check_table(conn, TABLE) == []


@pytest.mark.parametrize("partitioned", [False, True])
def test_an_inbox_that_finds_no_duplicates_is_refused(make: Make, partitioned: bool) -> None:
    conn = make(partitioned)
    conn.execute("DROP INDEX idx_orders_inbox_deduplication")

    findings = check_table(conn, INBOX, inbox=True)

    with pytest.raises(TableInvalid, match="idx_orders_inbox_deduplication is missing"):
        refuse_errors(INBOX, findings)
    conn.execute(findings[0].remedy.encode())
    assert check_table(conn, INBOX, inbox=True) == []


def test_an_index_of_another_name_does_as_well(make: Make) -> None:
    conn = make(False)
    conn.execute("ALTER INDEX idx_orders_outbox_locked_at RENAME TO another")

    assert check_table(conn, TABLE) == []


def test_a_partitioned_table_without_partitions_is_told_how_to_get_one(database: Database) -> None:
    conn = database.connect()
    conn.execute(kind(partitioned=True).ddl(TABLE))

    (finding,) = check_table(conn, TABLE)

    assert finding.problem == "it has no partitions, so nothing can be written"
    conn.execute(finding.remedy.encode())
    assert check_table(conn, TABLE) == []
    conn.execute(
        "INSERT INTO orders_outbox (id, event_type, aggregate_type, aggregate_id, topic, partition_key, payload,"
        " scheduled_at, created_at)"
        " VALUES (gen_random_uuid(), 't', 't', gen_random_uuid(), 't', 'k', '1', now(), now())"
    )


@pytest.mark.parametrize("partitioned", [False, True])
def test_our_index_is_recommended_once_it_pays(make: Make, partitioned: bool) -> None:
    conn = make(partitioned)
    leaf = "orders_outbox_p0" if partitioned else "orders_outbox"
    conn.execute(MANY_ROWS, [MANY, leaf])

    (finding,) = check_table(conn, TABLE)

    assert finding.level == "warning"
    assert "without an index on unfinished events" in finding.problem
    conn.execute(finding.remedy.encode())
    # Making an index counts the rows.
    conn.execute(MANY_ROWS, [MANY, leaf])
    assert check_table(conn, TABLE) == []
    conn.execute("DROP INDEX idx_orders_outbox_outspark_ready")
    conn.execute(MANY_ROWS, [MANY - 1, leaf])
    assert check_table(conn, TABLE) == []


@pytest.mark.parametrize("partitioned", [False, True])
def test_the_layout_is_seen(make: Make, partitioned: bool) -> None:
    conn = make(partitioned)
    table = TABLE.within("public")

    before = look_at(conn, table)
    conn.execute(ready_index(table).encode())
    after = look_at(conn, table)

    assert (before.partitioned, before.partitions) == (partitioned, 1)
    assert (before.has_ready_index, after.has_ready_index) == (False, True)
