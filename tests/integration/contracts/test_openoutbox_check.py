"""A table that departs from the contract is described, and each remedy mends it."""

from __future__ import annotations

import psycopg
import pytest

from outspark.contracts.openoutbox.table import check_table, ddl
from outspark.database.check import refuse_errors
from outspark.database.names import TableName
from outspark.errors import TableInvalid
from tests.databases import Database

TABLE = TableName("orders_outbox")


@pytest.fixture
def conn(database: Database) -> psycopg.Connection:
    conn = database.connect()
    conn.execute(ddl(TABLE))
    return conn


def test_a_table_of_ours_is_without_findings(conn: psycopg.Connection) -> None:
    assert check_table(conn, TABLE) == []


@pytest.mark.parametrize(
    ("damage", "level", "problem"),
    [
        ("DROP COLUMN locked_by", "error", "column locked_by is missing"),
        ("DROP COLUMN headers", "error", "column headers is missing"),
        ("ALTER COLUMN payload TYPE text USING ''", "error", "column payload is text, not bytea"),
        (
            "ALTER COLUMN available_at TYPE timestamp",
            "error",
            "column available_at is timestamp without time zone, not timestamp with time zone",
        ),
        ("DROP CONSTRAINT orders_outbox_pkey", "error", "event_id is not unique"),
        (
            "ALTER COLUMN event_type TYPE varchar(80)",
            "warning",
            "event_type is character varying(80), not text",
        ),
        ("ALTER COLUMN attempts TYPE bigint", "warning", "column attempts is bigint, not integer"),
        ("ALTER COLUMN headers DROP NOT NULL", "warning", "column headers may be NULL"),
        ("ALTER COLUMN created_at DROP DEFAULT", "warning", "column created_at has no default"),
        ("DROP CONSTRAINT check_valid_status", "warning", "no CHECK keeps status"),
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
    conn.execute("DROP INDEX orders_outbox_metrics_count_idx")

    [finding] = check_table(conn, TABLE)

    assert finding.level == "warning"
    assert finding.problem == "index orders_outbox_metrics_count_idx is missing or unusable"
    assert finding.remedy == (
        'CREATE INDEX CONCURRENTLY "orders_outbox_metrics_count_idx" ON "public"."orders_outbox" (status)'
        " INCLUDE (attempts) WHERE status = 'PENDING';"
    )
    conn.execute(finding.remedy)
    assert check_table(conn, TABLE) == []


def test_an_index_of_another_name_does_as_well(conn: psycopg.Connection) -> None:
    conn.execute("ALTER INDEX orders_outbox_prune_dead_idx RENAME TO mine")

    assert check_table(conn, TABLE) == []


def test_errors_come_first_and_are_refused_with_their_remedies(conn: psycopg.Connection) -> None:
    conn.execute("DROP INDEX orders_outbox_prune_dead_idx; ALTER TABLE orders_outbox DROP COLUMN last_error")

    findings = check_table(conn, TABLE)

    assert [finding.level for finding in findings] == ["error", "warning"]
    with pytest.raises(
        TableInvalid, match=r'ALTER TABLE "public"."orders_outbox" ADD COLUMN last_error text;'
    ):
        refuse_errors(TABLE, findings)
    refuse_errors(TABLE, findings[1:])


def test_no_table_at_all(conn: psycopg.Connection) -> None:
    with pytest.raises(
        TableInvalid, match=r"there is no table nowhere.*outspark init --table nowhere --apply"
    ):
        check_table(conn, TableName("nowhere"))
