"""Our table is the contract's table, whichever way it is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outspark import migrations
from outspark.contracts.openoutbox.table import DEFAULT_TABLE, SHAPE, ddl, metadata
from outspark.database.names import TableName
from tests.databases import Database
from tests.integration.contracts.autogenerate import differences, engine_of, kinds, migrate, reflect
from tests.integration.contracts.catalog import catalog

SEED = Path(__file__).with_name("openoutbox_seed.sql").read_text()


def by_script(database: Database) -> None:
    database.connect().execute(ddl())


def by_metadata(database: Database) -> None:
    with engine_of(database) as engine:
        metadata().metadata.create_all(engine)


def by_migration(database: Database) -> None:
    migrate(database, migrations.upgrade)


@pytest.mark.parametrize("create", [by_script, by_metadata, by_migration])
def test_the_catalog_equals_the_seeds(database: Database, create: Callable[[Database], None]) -> None:
    conn = database.connect()
    conn.execute(SEED)
    wanted = catalog(conn, "openoutbox_events")
    conn.execute("DROP TABLE openoutbox_events")

    create(database)

    assert catalog(conn, "openoutbox_events") == wanted
    assert len(wanted.indexes) == 7


def test_the_comparison_sees_a_changed_table(database: Database) -> None:
    conn = database.connect()
    conn.execute(SEED)
    wanted = catalog(conn, "openoutbox_events")

    conn.execute("ALTER TABLE openoutbox_events ALTER COLUMN attempts SET DEFAULT 1")

    assert catalog(conn, "openoutbox_events") != wanted


def test_autogenerate_finds_nothing_to_do_on_the_seeds_table(database: Database) -> None:
    database.connect().execute(SEED)

    assert differences(database, metadata().metadata) == []


def test_autogenerate_finds_nothing_to_do_on_our_table_from_the_seeds(database: Database) -> None:
    conn = database.connect()
    conn.execute(SEED)
    seed = reflect(database)
    conn.execute("DROP TABLE openoutbox_events")
    conn.execute(ddl())

    assert differences(database, seed) == []


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("ALTER TABLE openoutbox_events DROP COLUMN last_error", "add_column"),
        ("ALTER TABLE openoutbox_events ADD COLUMN extra text", "remove_column"),
        ("ALTER TABLE openoutbox_events ALTER COLUMN attempts TYPE bigint", "modify_type"),
        ("ALTER TABLE openoutbox_events ALTER COLUMN payload DROP NOT NULL", "modify_nullable"),
        ("ALTER TABLE openoutbox_events ALTER COLUMN status SET DEFAULT 'DEAD'", "modify_default"),
        ("DROP INDEX idx_openoutbox_prune_dead", "add_index"),
    ],
)
def test_autogenerate_finds_what_was_changed(database: Database, change: str, kind: str) -> None:
    conn = database.connect()
    conn.execute(SEED)
    conn.execute(change)

    found = differences(database, metadata().metadata)

    assert kinds(found) == [kind]


@pytest.mark.parametrize("name", ["orders_outbox", "sales.openoutbox_events", '"Sales Dept"."Order-Events"'])
def test_a_table_of_another_name_differs_in_names_only(database: Database, name: str) -> None:
    conn = database.connect()
    conn.execute(SEED)
    seed = catalog(conn, "openoutbox_events")
    conn.execute('CREATE SCHEMA sales; CREATE SCHEMA "Sales Dept"')

    table = TableName.parse(name)
    conn.execute(ddl(table))

    ours = catalog(conn, table.identifier.as_string(conn))
    schema = table.within("public").schema
    assert ours.columns == seed.columns
    assert {row[4] for row in ours.constraints} == {row[4] for row in seed.constraints}
    assert {covers(row[4]) for row in ours.indexes} == {covers(row[4]) for row in seed.indexes}
    assert {row[1].strip('"') for row in ours.indexes} == {schema}
    assert differences_of_one(database, table) == []


def covers(definition: str) -> str:
    return definition.split(" USING ")[1]


def differences_of_one(database: Database, table: TableName) -> list[Any]:
    """Both tables are in the database, so both must be in the metadata."""
    return differences(database, metadata(table, metadata().metadata).metadata)


def test_outboxes_in_one_schema_do_not_share_an_index(database: Database) -> None:
    conn = database.connect()
    tables = [
        DEFAULT_TABLE,
        *map(TableName, ("openoutbox", "orders", "orders_events", "x" * 62 + "a", "x" * 62 + "b")),
    ]
    for table in tables:
        conn.execute(ddl(table))

    for table in tables:
        assert len(catalog(conn, table.table).indexes) == 7, table
    names = {SHAPE.name_index(table, index) for table in tables for index in SHAPE.indexes}
    assert len(names) == len(tables) * len(SHAPE.indexes)


def test_the_script_may_run_twice(database: Database) -> None:
    conn = database.connect()
    conn.execute(ddl())
    conn.execute(
        "INSERT INTO openoutbox_events (event_id, event_type, payload) VALUES (gen_random_uuid(), 't', '')"
    )

    conn.execute(ddl())

    assert conn.execute("SELECT count(*) FROM openoutbox_events").fetchone() == (1,)


def test_a_migration_goes_down_again(database: Database) -> None:
    migrate(database, migrations.upgrade)
    migrate(database, lambda op: migrations.install_doorbell(op, lanes=2))
    migrate(database, migrations.remove_doorbell)
    migrate(database, migrations.downgrade)

    conn = database.connect()
    assert conn.execute("SELECT to_regclass('openoutbox_events')").fetchone() == (None,)
    assert conn.execute("SELECT count(*) FROM pg_proc WHERE proname LIKE '%doorbell'").fetchone() == (0,)


def test_the_status_is_one_of_four(database: Database) -> None:
    conn = database.connect()
    conn.execute(ddl())

    with pytest.raises(psycopg.errors.CheckViolation, match="check_valid_status"):
        conn.execute(
            "INSERT INTO openoutbox_events (event_id, event_type, payload, status)"
            " VALUES (gen_random_uuid(), 't', '', 'SENT')"
        )
