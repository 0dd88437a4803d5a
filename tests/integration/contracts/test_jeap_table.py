"""Our tables are jEAP's tables, whichever way they are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outspark import migrations
from outspark.contracts.jeap.table import DEFAULT_TABLE, SHAPE, ddl, metadata, ready_index, sequence, shedlock
from outspark.database.names import TableName
from tests.databases import Database
from tests.integration.contracts.autogenerate import differences, engine_of, kinds, migrate, reflect
from tests.integration.contracts.catalog import Catalog, catalog

SEED = Path(__file__).with_name("jeap_seed.sql").read_text()
DROP = "DROP TABLE deferred_message, shedlock; DROP SEQUENCE deferred_message_sequence"
NAMES = ["orders_outbox", "sales.deferred_message", '"Sales Dept"."Order-Messages"']

SEQUENCE = """
SELECT s.seqtypid::regtype::text, s.seqstart, s.seqincrement, s.seqmax, s.seqmin, s.seqcache, s.seqcycle,
       EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = s.seqrelid AND d.deptype = 'a')
FROM pg_sequence s WHERE s.seqrelid = %s::regclass"""


def everything(conn: psycopg.Connection, table: TableName = DEFAULT_TABLE) -> dict[str, Any]:
    """Both tables and the sequence, as the catalog has them."""
    outbox, lock, ids = (
        name.identifier.as_string(conn) for name in (table, shedlock(table), sequence(table))
    )
    return {
        "outbox": catalog(conn, outbox),
        "shedlock": catalog(conn, lock),
        "sequence": conn.execute(SEQUENCE, [ids]).fetchall(),
    }


def by_script(database: Database) -> None:
    database.connect().execute(ddl())


def by_metadata(database: Database) -> None:
    with engine_of(database) as engine:
        metadata().metadata.create_all(engine)


def by_migration(database: Database) -> None:
    migrate(database, migrations.upgrade_jeap)


@pytest.mark.parametrize("create", [by_script, by_metadata, by_migration])
def test_the_catalog_equals_the_seeds(database: Database, create: Callable[[Database], None]) -> None:
    conn = database.connect()
    conn.execute(SEED)
    wanted = everything(conn)
    conn.execute(DROP)

    create(database)

    assert everything(conn) == wanted
    assert len(wanted["outbox"].columns) == 23
    assert len(wanted["outbox"].indexes) == 8
    assert wanted["sequence"] == [("bigint", 1, 1, 2**63 - 1, 1, 1, False, False)]


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE deferred_message ALTER COLUMN resend SET DEFAULT TRUE",
        "ALTER TABLE shedlock ALTER COLUMN lock_until TYPE timestamptz",
        "ALTER SEQUENCE deferred_message_sequence INCREMENT 50",
    ],
)
def test_the_comparison_sees_what_was_changed(database: Database, change: str) -> None:
    conn = database.connect()
    conn.execute(SEED)
    wanted = everything(conn)

    conn.execute(change)

    assert everything(conn) != wanted


def test_autogenerate_finds_nothing_to_do_on_the_seeds_tables(database: Database) -> None:
    database.connect().execute(SEED)

    assert differences(database, metadata().metadata) == []


def test_autogenerate_finds_nothing_to_do_on_our_tables_from_the_seeds(database: Database) -> None:
    conn = database.connect()
    conn.execute(SEED)
    seed = reflect(database)
    conn.execute(DROP)
    conn.execute(ddl())

    assert differences(database, seed) == []


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("ALTER TABLE deferred_message DROP COLUMN sampled", "add_column"),
        ("ALTER TABLE deferred_message ADD COLUMN extra text", "remove_column"),
        ("ALTER TABLE deferred_message ALTER COLUMN trace_id TYPE integer", "modify_type"),
        ("ALTER TABLE deferred_message ALTER COLUMN message DROP NOT NULL", "modify_nullable"),
        ("ALTER TABLE deferred_message ALTER COLUMN resend SET DEFAULT TRUE", "modify_default"),
        ("DROP INDEX deferred_message_failed", "add_index"),
        ("ALTER TABLE shedlock ALTER COLUMN lock_until TYPE timestamptz", "modify_type"),
        ("DROP TABLE shedlock", "add_table"),
    ],
)
def test_autogenerate_finds_what_was_changed(database: Database, change: str, kind: str) -> None:
    conn = database.connect()
    conn.execute(SEED)
    conn.execute(change)

    assert kinds(differences(database, metadata().metadata)) == [kind]


@pytest.mark.parametrize("name", NAMES)
def test_tables_of_another_name_differ_in_names_only(database: Database, name: str) -> None:
    conn = database.connect()
    conn.execute(SEED)
    seed = everything(conn)
    conn.execute('CREATE SCHEMA sales; CREATE SCHEMA "Sales Dept"')

    table = TableName.parse(name)
    conn.execute(ddl(table))

    ours = everything(conn, table)
    assert ours["sequence"] == seed["sequence"]
    assert nameless(ours["outbox"]) == nameless(seed["outbox"])
    assert nameless(ours["shedlock"]) == nameless(seed["shedlock"])
    assert {row[1].strip('"') for row in ours["outbox"].indexes} == {table.within("public").schema}
    # Both outboxes are in the database, so both must be in the metadata.
    assert differences(database, metadata(table, metadata().metadata).metadata) == []


def nameless(found: Catalog) -> tuple[object, ...]:
    constraints = sorted(row[4] for row in found.constraints)
    indexes = sorted((row[2], row[4].split(" USING ")[1]) for row in found.indexes)
    return found.columns, constraints, indexes


def test_outboxes_in_one_schema_share_the_locks_and_nothing_else(database: Database) -> None:
    conn = database.connect()
    tables = [DEFAULT_TABLE, *map(TableName, ("deferred", "orders", "x" * 62 + "a", "x" * 62 + "b"))]
    for table in tables:
        conn.execute(ddl(table))
        conn.execute(ready_index(table))

    for table in tables:
        assert len(catalog(conn, table.table).indexes) == 9, table
    names = {SHAPE.name_index(table, index) for table in tables for index in SHAPE.indexes}
    assert len(names) == len(tables) * len(SHAPE.indexes)
    assert len({sequence(table) for table in tables}) == len(tables)
    assert {shedlock(table) for table in tables} == {TableName("shedlock")}
    assert conn.execute("SELECT count(*) FROM pg_class WHERE relname = 'shedlock'").fetchone() == (1,)


@pytest.mark.parametrize("create", [by_script, by_migration, by_metadata])
def test_a_shedlock_that_is_there_is_left_alone(
    database: Database, create: Callable[[Database], None]
) -> None:
    """It may be another library's, with rows of other tasks and columns of its own."""
    conn = database.connect()
    conn.execute(
        "CREATE TABLE shedlock (name varchar(128) PRIMARY KEY, lock_until timestamptz, locked_at timestamptz,"
        " locked_by text, extra int DEFAULT 7)"
    )
    conn.execute("INSERT INTO shedlock VALUES ('a task', now(), now(), 'somebody')")
    before = catalog(conn, "shedlock"), conn.execute("SELECT * FROM shedlock").fetchall()

    create(database)

    assert (catalog(conn, "shedlock"), conn.execute("SELECT * FROM shedlock").fetchall()) == before
    assert len(catalog(conn, "deferred_message").indexes) == 8


@pytest.mark.parametrize("name", ["deferred_message", *NAMES])
def test_the_script_may_run_twice(database: Database, name: str) -> None:
    conn = database.connect()
    conn.execute('CREATE SCHEMA sales; CREATE SCHEMA "Sales Dept"')
    table = TableName.parse(name)
    conn.execute(ddl(table))
    conn.execute("SELECT nextval(%s)", [sequence(table).identifier.as_string(conn)])
    before = everything(conn, table)

    conn.execute(ddl(table))

    assert everything(conn, table) == before
    assert conn.execute("SELECT nextval(%s)", [sequence(table).identifier.as_string(conn)]).fetchone() == (2,)


def test_our_index_is_optional_and_may_be_made_twice(database: Database) -> None:
    conn = database.connect()
    conn.execute(SEED)

    conn.execute(ready_index(DEFAULT_TABLE))
    conn.execute(ready_index(DEFAULT_TABLE))

    assert len(catalog(conn, "deferred_message").indexes) == 9
    assert differences(database, metadata(with_ready_index=True).metadata) == []
    assert kinds(differences(database, metadata().metadata)) == ["remove_index"]


def test_a_migration_goes_down_again_and_leaves_the_locks(database: Database) -> None:
    migrate(database, migrations.upgrade_jeap)
    migrate(database, migrations.downgrade_jeap)

    found = "SELECT to_regclass('deferred_message'), to_regclass('deferred_message_sequence')"
    conn = database.connect()
    assert conn.execute(found).fetchone() == (None, None)
    assert conn.execute("SELECT count(*) FROM shedlock").fetchone() == (0,)
