"""Our four tables are omni-box's, whichever way they are made: by SQL, by a migration, from a service's own models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from outspark import migrations
from outspark.contracts.omnibox.table import INBOX, OUTBOX, Kind, kind, ready_index
from outspark.database.names import TableName
from outspark.outbox.omnibox import OutboxEventBase
from tests.databases import Database
from tests.integration.contracts import omnibox_service as service
from tests.integration.contracts.autogenerate import (
    autogenerate,
    differences,
    engine_of,
    kinds,
    migrate,
    reflect,
)
from tests.integration.contracts.catalog import Catalog, catalog

SEED = Path(__file__).with_name("omnibox_seed.sql").read_text()
FOUR = {
    "outbox_events": (False, False),
    "inbox_events": (True, False),
    "outbox_events_partitioned": (False, True),
    "inbox_events_partitioned": (True, True),
}
DROP = f"DROP TABLE {', '.join(FOUR)}"
INDEXES = {"outbox_events": 7, "inbox_events": 8}
PARTITION = """
CREATE TABLE {name}_p0 PARTITION OF {name} FOR VALUES FROM ('2000-01-01') TO ('2100-01-01')"""


def kind_of(name: str) -> Kind:
    inbox, partitioned = FOUR[name]
    return kind(inbox=inbox, partitioned=partitioned)


def all_four(conn: psycopg.Connection) -> dict[str, Catalog]:
    return {name: catalog(conn, name) for name in FOUR}


def by_script(database: Database) -> None:
    for name in FOUR:
        database.connect().execute(kind_of(name).ddl())


def by_metadata(database: Database) -> None:
    with engine_of(database) as engine:
        for name in FOUR:
            kind_of(name).metadata().metadata.create_all(engine)


def by_migration(database: Database) -> None:
    for inbox, partitioned in FOUR.values():
        migrate(database, partial(migrations.upgrade_omnibox, inbox=inbox, partitioned=partitioned))


def by_models(database: Database) -> None:
    with engine_of(database) as engine:
        service.Base.metadata.create_all(engine)


def by_autogenerate(database: Database) -> None:
    autogenerate(database, service.Base.metadata)


@pytest.mark.parametrize("create", [by_script, by_metadata, by_migration, by_models, by_autogenerate])
def test_the_catalog_equals_the_seeds(database: Database, create: Callable[[Database], None]) -> None:
    conn = database.connect()
    conn.execute(SEED)
    wanted = all_four(conn)
    conn.execute(DROP)

    create(database)

    assert all_four(conn) == wanted
    for name, found in wanted.items():
        assert len(found.indexes) == INDEXES[name.removesuffix("_partitioned")]
        assert found.partitioning == [
            ("p", "RANGE (created_at)") if name.endswith("_partitioned") else ("r", None)
        ]


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE outbox_events ALTER COLUMN max_attempts SET DEFAULT 7",
        "ALTER TABLE inbox_events DROP CONSTRAINT ck_inbox_events_lock_consistency",
        "ALTER TABLE inbox_events_partitioned ALTER COLUMN source TYPE text",
        "DROP INDEX idx_outbox_events_p_idempotency_key",
        "ALTER INDEX idx_inbox_deduplication RENAME TO idx_inbox_events_deduplication",
    ],
)
def test_the_comparison_sees_what_was_changed(database: Database, change: str) -> None:
    conn = database.connect()
    conn.execute(SEED)
    wanted = all_four(conn)

    conn.execute(change)

    assert all_four(conn) != wanted


def test_autogenerate_writes_the_tables_and_then_finds_nothing_to_do(database: Database) -> None:
    first = autogenerate(database, service.Base.metadata)
    second = autogenerate(database, service.Base.metadata)

    assert first.count("op.create_table") == 4
    assert first.count("postgresql_partition_by='RANGE (created_at)'") == 2
    assert "op." not in second
    assert differences(database, service.Base.metadata) == []


def test_autogenerate_finds_nothing_to_do_on_the_seeds_tables(database: Database) -> None:
    database.connect().execute(SEED)

    assert differences(database, service.Base.metadata) == []


def test_autogenerate_finds_nothing_to_do_on_our_tables_from_the_seeds(database: Database) -> None:
    conn = database.connect()
    conn.execute(SEED)
    seed = reflect(database)
    conn.execute(DROP)
    by_script(database)

    assert differences(database, seed) == []


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("ALTER TABLE outbox_events DROP COLUMN causation_id", "add_column"),
        ("ALTER TABLE inbox_events ADD COLUMN extra text", "remove_column"),
        ("ALTER TABLE inbox_events ALTER COLUMN source TYPE varchar(80)", "modify_type"),
        ("ALTER TABLE outbox_events ALTER COLUMN topic DROP NOT NULL", "modify_nullable"),
        ("ALTER TABLE outbox_events ALTER COLUMN status SET DEFAULT 'failed'", "modify_default"),
        ("DROP INDEX idx_inbox_events_p_deduplication", "add_index"),
        ("DROP TABLE inbox_events_partitioned", "add_table"),
    ],
)
def test_autogenerate_finds_what_was_changed(database: Database, change: str, kind: str) -> None:
    conn = database.connect()
    conn.execute(SEED)
    conn.execute(change)

    # With a new table come its indexes.
    assert kinds(differences(database, service.Base.metadata))[0] == kind


def test_autogenerate_leaves_partitions_alone_when_told_of_them(database: Database) -> None:
    conn = database.connect()
    conn.execute(SEED)
    conn.execute(PARTITION.format(name="outbox_events_partitioned").encode())
    conn.execute("CREATE TABLE not_a_partition (id int)")

    left_alone = differences(database, service.Base.metadata, migrations.without_partitions)
    without_it = differences(database, service.Base.metadata)

    assert kinds(left_alone) == ["remove_table"]
    assert {step[1].name for step in without_it if step[0] == "remove_table"} == {
        "not_a_partition",
        "outbox_events_partitioned_p0",
    }


def test_a_table_may_have_another_name_and_more_columns(database: Database) -> None:
    conn = database.connect()
    conn.execute(SEED)
    seed, partitioned = catalog(conn, "outbox_events"), catalog(conn, "inbox_events_partitioned")
    conn.execute(DROP)
    autogenerate(database, service.OrdersBase.metadata)

    conn.execute("ALTER TABLE orders_outbox DROP COLUMN tenant; ALTER TABLE orders_inbox DROP COLUMN tenant")
    conn.execute("DROP INDEX idx_orders_outbox_outspark_ready")

    outbox, inbox = catalog(conn, "orders_outbox"), catalog(conn, "orders_inbox")
    assert outbox.nameless() == seed.nameless()
    assert inbox.nameless() == partitioned.nameless()
    assert {row[0] for row in inbox.indexes} >= {"idx_orders_inbox_deduplication", "orders_inbox_pkey"}
    assert {row[0] for row in outbox.constraints} >= {"ck_orders_outbox_attempts_valid"}


def test_autogenerate_finds_nothing_to_do_on_renamed_and_extended_tables(database: Database) -> None:
    first = autogenerate(database, service.OrdersBase.metadata)

    assert "ix_orders_outbox_tenant" in first
    assert differences(database, service.OrdersBase.metadata) == []


def test_a_naming_convention_of_the_service_changes_no_name_of_the_contract(database: Database) -> None:
    convention = {
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(constraint_name)s",
        "pk": "%(table_name)s_pkey",
    }

    class Base(orm.DeclarativeBase):
        metadata = sa.MetaData(naming_convention=convention)

    class OutboxEvent(Base, OutboxEventBase):
        pass

    conn = database.connect()
    conn.execute(SEED)
    wanted = catalog(conn, "outbox_events")
    conn.execute(DROP)

    autogenerate(database, Base.metadata)

    assert catalog(conn, "outbox_events") == wanted


@pytest.mark.parametrize("name", ["orders_outbox", "sales.outbox_events", '"Sales Dept"."Order-Events"'])
@pytest.mark.parametrize("of", FOUR)
def test_a_table_of_another_name_differs_in_names_only(database: Database, of: str, name: str) -> None:
    conn = database.connect()
    conn.execute(SEED)
    conn.execute('CREATE SCHEMA sales; CREATE SCHEMA "Sales Dept"')
    table = TableName.parse(name)

    conn.execute(kind_of(of).ddl(table))

    found = catalog(conn, table.identifier.as_string(conn))
    assert found.nameless() == catalog(conn, of).nameless()
    assert {row[1].strip('"') for row in found.indexes} == {table.within("public").schema}


def test_tables_of_one_schema_share_no_name(database: Database) -> None:
    """Those that would come close are those whose names begin as omni-box's own."""
    conn = database.connect()
    conn.execute(SEED)
    for name in ("inbox", "inbox_events_p", "x" * 62 + "a", "x" * 62 + "b"):
        conn.execute(kind(inbox=True).ddl(TableName(name)))
        conn.execute(ready_index(TableName(name)))

        assert len(catalog(conn, name).indexes) == 9, name
    for name in ("outbox", "outbox_events_p"):
        conn.execute(kind(partitioned=True).ddl(TableName(name)))

        assert len(catalog(conn, name).indexes) == 7, name


@pytest.mark.parametrize("name", FOUR)
def test_the_script_may_run_twice(database: Database, name: str) -> None:
    conn = database.connect()
    conn.execute(kind_of(name).ddl())
    before = catalog(conn, name)

    conn.execute(kind_of(name).ddl())

    assert catalog(conn, name) == before


@pytest.mark.parametrize("name", FOUR)
def test_our_index_is_optional_and_may_be_made_twice(database: Database, name: str) -> None:
    conn = database.connect()
    conn.execute(kind_of(name).ddl())
    before = len(catalog(conn, name).indexes)
    table = TableName(name)

    conn.execute(ready_index(table))
    conn.execute(ready_index(table))

    assert len(catalog(conn, name).indexes) == before + 1
    assert differences(database, kind_of(name).metadata(with_ready_index=True).metadata) == []
    assert kinds(differences(database, kind_of(name).metadata().metadata)) == ["remove_index"]


def test_a_migration_goes_down_again(database: Database) -> None:
    conn = database.connect()
    for inbox, partitioned in FOUR.values():
        up = partial(migrations.upgrade_omnibox, table="orders", inbox=inbox, partitioned=partitioned)
        down = partial(migrations.downgrade_omnibox, table="orders", inbox=inbox, partitioned=partitioned)
        migrate(database, partial(up, ready_index=True))
        assert conn.execute("SELECT to_regclass('idx_orders_outspark_ready') IS NULL").fetchone() == (False,)
        migrate(database, down)
        assert conn.execute("SELECT to_regclass('orders')").fetchone() == (None,)


def test_a_model_writes_the_time_it_is_in_whatever_zone(database: Database) -> None:
    """The table's own default does not: in a session in Tokyo it is nine hours off."""
    conn = database.connect()
    conn.execute(SEED)
    conn.execute(PARTITION.format(name="outbox_events_partitioned").encode())
    given = {
        "event_type": "order.paid",
        "aggregate_type": "order",
        "aggregate_id": "0198c1d2-0000-7000-8000-000000000000",
        "topic": "orders",
        "partition_key": "7",
        "payload": {"number": 7},
    }
    with engine_of(database) as engine, orm.Session(engine) as session:
        session.execute(sa.text("SET timezone = 'Asia/Tokyo'"))
        for model in (service.OutboxEvent, service.PartitionedOutboxEvent):
            event = model(**given)
            session.add(event)
            session.flush()
            event.correlation_id = "c"
        session.commit()

    for table in ("outbox_events", "outbox_events_partitioned"):
        rows = conn.execute(
            f"SELECT clock_timestamp() - least(created_at, updated_at, scheduled_at) < interval '1 minute', "
            f"greatest(created_at, updated_at, scheduled_at) <= clock_timestamp(), status, headers, "
            f"updated_at > created_at, correlation_id FROM {table}".encode()
        ).fetchall()
        assert rows == [(True, True, "pending", None, True, "c")]


def test_names_are_those_of_the_shape() -> None:
    assert OUTBOX.name_index(TableName("orders"), OUTBOX.indexes[0]) == "idx_orders_pending_fetch"
    assert INBOX.name_index(TableName("inbox"), INBOX.indexes[0]) == "idx_inbox_deduplication_"
    assert OUTBOX.name_check(TableName("orders"), "attempts_valid") == "ck_orders_attempts_valid"
