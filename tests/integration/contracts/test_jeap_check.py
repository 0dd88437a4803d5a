"""A jEAP outbox that departs from the contract is described, and each remedy mends it."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from outspark.contracts.jeap.table import DEFAULT_TABLE, MANY, check_table, ddl, ready_index
from outspark.database.check import refuse_errors
from outspark.database.names import TableName
from outspark.errors import TableInvalid
from tests.databases import Database
from tests.integration.relay.jeap_harness import header_ddl

TABLE = TableName("orders_outbox")
SEED = Path(__file__).with_name("jeap_seed.sql").read_text()

MANY_ROWS = """\
UPDATE pg_class SET reltuples = %s WHERE oid = 'orders_outbox'::regclass"""


@pytest.fixture
def conn(database: Database) -> psycopg.Connection:
    conn = database.connect()
    conn.execute(ddl(TABLE))
    return conn


def test_tables_of_ours_are_without_findings(conn: psycopg.Connection) -> None:
    assert check_table(conn, TABLE) == []


def test_the_seeds_tables_are_without_findings(database: Database) -> None:
    conn = database.connect()
    conn.execute(SEED)

    assert check_table(conn, DEFAULT_TABLE) == []


@pytest.mark.parametrize(
    ("damage", "level", "problem"),
    [
        ("DROP COLUMN resend", "error", "column resend is missing"),
        ("DROP COLUMN key", "error", "column key is missing"),
        ("DROP COLUMN sampled", "error", "column sampled is missing"),
        ("ALTER COLUMN message TYPE text USING ''", "error", "column message is text, not bytea"),
        (
            "ALTER COLUMN schedule_after TYPE timestamp",
            "error",
            "column schedule_after is timestamp without time zone, not timestamp with time zone",
        ),
        ("DROP CONSTRAINT orders_outbox_pkey", "error", "id is not unique"),
        ("ALTER COLUMN topic TYPE text", "warning", "column topic is text, not character varying"),
        (
            "ALTER COLUMN topic TYPE varchar(80)",
            "warning",
            "column topic is character varying(80), not character varying",
        ),
        ("ALTER COLUMN created DROP NOT NULL", "warning", "column created may be NULL"),
        ("ALTER COLUMN resend DROP DEFAULT", "warning", "column resend has no default"),
    ],
)
def test_damage_is_found_and_its_remedy_mends_it(
    conn: psycopg.Connection, damage: str, level: str, problem: str
) -> None:
    conn.execute(f"ALTER TABLE orders_outbox {damage}")

    findings = check_table(conn, TABLE)

    assert findings[0].level == level
    assert problem in findings[0].problem
    for finding in findings:
        conn.execute(finding.remedy)
    assert check_table(conn, TABLE) == []


def test_a_missing_index_is_a_warning_with_the_statement_that_blocks_nobody(conn: psycopg.Connection) -> None:
    conn.execute("DROP INDEX orders_outbox_failed")

    [finding] = check_table(conn, TABLE)

    assert finding.level == "warning"
    assert finding.problem == "index orders_outbox_failed is missing or unusable"
    assert finding.remedy == (
        'CREATE INDEX CONCURRENTLY "orders_outbox_failed" ON "public"."orders_outbox" (failed);'
    )
    conn.execute(finding.remedy)
    assert check_table(conn, TABLE) == []


def test_without_locks_it_is_refused(conn: psycopg.Connection) -> None:
    conn.execute("DROP TABLE shedlock; DROP INDEX orders_outbox_failed")

    findings = check_table(conn, TABLE)

    assert [finding.level for finding in findings] == ["error", "warning"]
    assert "shedlock is missing" in findings[0].problem
    with pytest.raises(TableInvalid, match=r'CREATE TABLE IF NOT EXISTS "public"."shedlock"'):
        refuse_errors(TABLE, findings)
    for finding in findings:
        conn.execute(finding.remedy)
    assert check_table(conn, TABLE) == []


@pytest.mark.parametrize(
    "change",
    [
        "ALTER COLUMN lock_until TYPE timestamp(3), ALTER COLUMN locked_at TYPE timestamp(3)",
        "ALTER COLUMN name TYPE varchar(128), ALTER COLUMN locked_by TYPE text",
        "ADD COLUMN extra int",
    ],
)
def test_locks_of_another_make_will_do(conn: psycopg.Connection, change: str) -> None:
    conn.execute(f"ALTER TABLE shedlock {change}")

    assert check_table(conn, TABLE) == []


def test_locks_with_a_time_zone_are_a_warning(conn: psycopg.Connection) -> None:
    """ShedLock's times would be those of each session's own zone."""
    conn.execute("ALTER TABLE shedlock ALTER COLUMN lock_until TYPE timestamptz")

    [finding] = check_table(conn, TABLE)

    assert finding.level == "warning"
    assert "lock_until of public.shedlock has a time zone" in finding.problem
    conn.execute(finding.remedy)
    assert check_table(conn, TABLE) == []


def test_a_table_that_only_has_the_name_of_the_locks_is_refused(conn: psycopg.Connection) -> None:
    conn.execute("DROP TABLE shedlock; CREATE TABLE shedlock (name text PRIMARY KEY, tool text)")

    findings = check_table(conn, TABLE)

    assert {finding.level for finding in findings} == {"error"}
    assert "has no column lock_until" in findings[0].problem


def test_our_index_is_advised_only_where_it_pays(conn: psycopg.Connection) -> None:
    conn.execute(MANY_ROWS, [MANY - 1])
    assert check_table(conn, TABLE) == []
    conn.execute(MANY_ROWS, [MANY])

    [finding] = check_table(conn, TABLE)

    assert finding.level == "warning"
    assert not finding.lacks_index
    conn.execute(finding.remedy)
    assert check_table(conn, TABLE) == []
    conn.execute(MANY_ROWS, [MANY])
    assert check_table(conn, TABLE) == []


def test_our_index_is_known_by_what_it_covers(conn: psycopg.Connection) -> None:
    conn.execute(ready_index(TABLE))
    conn.execute("ALTER INDEX orders_outbox_outspark_ready RENAME TO mine")
    conn.execute(MANY_ROWS, [MANY])

    assert check_table(conn, TABLE) == []


def test_no_table_at_all(conn: psycopg.Connection) -> None:
    with pytest.raises(TableInvalid, match=r"there is no table nowhere"):
        check_table(conn, TableName("nowhere"))


def test_columns_that_we_do_not_know_are_refused_by_their_names(conn: psycopg.Connection) -> None:
    conn.execute("ALTER TABLE orders_outbox ADD COLUMN tenant text, ADD COLUMN delay interval")

    [finding] = check_table(conn, TABLE)

    assert finding.level == "error"
    assert finding.problem.startswith("unknown to this contract: delay, tenant; ")
    assert str(finding).endswith('; set: jeap.ignore = ["delay", "tenant"]')
    with pytest.raises(TableInvalid, match=r"delay, tenant"):
        refuse_errors(TABLE, [finding])
    [rest] = check_table(conn, TABLE, ["tenant"])
    assert rest.remedy == 'jeap.ignore = ["tenant", "delay"]'
    assert check_table(conn, TABLE, ["tenant", "delay"]) == []


def test_side_tables_that_we_do_not_know_are_refused_by_their_names(conn: psycopg.Connection) -> None:
    conn.execute("CREATE SCHEMA other")
    conn.execute(
        "CREATE TABLE audit (message bigint REFERENCES orders_outbox, again bigint REFERENCES orders_outbox)"
    )
    conn.execute("CREATE TABLE other.audit (message bigint REFERENCES orders_outbox)")
    conn.execute("CREATE TABLE unrelated (id bigint)")

    [finding] = check_table(conn, TABLE)

    assert finding.level == "error"
    assert finding.remedy == 'jeap.ignore = ["other.audit", "audit"]'
    assert check_table(conn, TABLE, ["other.audit", "audit"]) == []


def test_the_table_of_headers_is_known(database: Database) -> None:
    conn = database.connect()
    conn.execute(SEED)
    conn.execute(header_ddl())

    assert check_table(conn, DEFAULT_TABLE) == []


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("DROP COLUMN header_value", "column header_value is missing"),
        ("ALTER COLUMN header_value TYPE text USING ''", "column header_value is text, not bytea"),
        ("DROP CONSTRAINT deferred_message_header_pkey", "deferred_message_id, header_index is not unique"),
        ("ADD COLUMN charset text", "unknown to this contract: deferred_message_header.charset; "),
    ],
)
def test_headers_that_we_cannot_read_are_refused(database: Database, damage: str, problem: str) -> None:
    conn = database.connect()
    conn.execute(SEED)
    conn.execute(header_ddl())
    conn.execute(f"ALTER TABLE deferred_message_header {damage}")

    finding = check_table(conn, DEFAULT_TABLE)[0]

    assert finding.level == "error"
    assert problem in finding.problem
    assert "deferred_message_header" in finding.problem
