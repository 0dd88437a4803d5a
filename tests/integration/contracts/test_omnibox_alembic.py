"""Alembic itself, as a service runs it: its own models give the seed's tables, and after that nothing."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import Script

from tests.databases import Database
from tests.integration.contracts.catalog import catalog

SEED = Path(__file__).with_name("omnibox_seed.sql").read_text()
FOUR = ("outbox_events", "inbox_events", "outbox_events_partitioned", "inbox_events_partitioned")
DROP = f"DROP TABLE {', '.join(FOUR)}"
ENV = """
import sqlalchemy as sa
from alembic import context

from outspark.migrations import without_partitions
from tests.integration.contracts.omnibox_service import Base

engine = sa.create_engine(context.config.get_main_option("sqlalchemy.url"), poolclass=sa.NullPool)
with engine.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_server_default=True,
        include_name=without_partitions(connection),
    )
    with context.begin_transaction():
        context.run_migrations()
"""


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Config:
    config = Config(tmp_path / "alembic.ini", stdout=StringIO())
    command.init(config, str(tmp_path / "migrations"))
    (tmp_path / "migrations" / "env.py").write_text(ENV)
    config.set_main_option("sqlalchemy.url", database.url.replace("postgresql://", "postgresql+psycopg://"))
    return config


def revise(config: Config) -> str:
    """`alembic revision --autogenerate`; the migration as it was written."""
    script: Any = command.revision(config, autogenerate=True)
    assert isinstance(script, Script)
    return Path(script.path).read_text()


def test_a_services_first_revision_makes_the_seeds_tables_and_its_second_is_empty(
    database: Database, config: Config
) -> None:
    conn = database.connect()
    conn.execute(SEED)
    wanted = [catalog(conn, name) for name in FOUR]
    conn.execute(DROP)

    first = revise(config)
    command.upgrade(config, "head")

    assert first.count("op.create_table(") == 4
    assert [catalog(conn, name) for name in FOUR] == wanted
    conn.execute(
        "CREATE TABLE p0 PARTITION OF inbox_events_partitioned FOR VALUES FROM ('2000-01-01') TO ('2100-01-01')"
    )
    assert "op." not in revise(config)


def test_a_service_that_has_the_seeds_tables_has_nothing_to_do(database: Database, config: Config) -> None:
    database.connect().execute(SEED)

    assert "op." not in revise(config)


def test_a_revision_can_be_taken_back(database: Database, config: Config) -> None:
    revise(config)
    command.upgrade(config, "head")

    command.downgrade(config, "base")

    left = (
        database.connect()
        .execute("SELECT relname FROM pg_class WHERE relname LIKE '%box_events%'")
        .fetchall()
    )
    assert left == []
