"""What Alembic finds to do in a test's database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations

from tests.databases import Database


@contextmanager
def engine_of(database: Database) -> Iterator[sa.Engine]:
    engine = sa.create_engine(database.url.replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    engine.dispose()


def migrate(database: Database, step: Callable[[Operations], None]) -> None:
    with engine_of(database) as engine, engine.begin() as conn:
        step(Operations(MigrationContext.configure(conn)))


def reflect(database: Database) -> sa.MetaData:
    """The tables that are there, as somebody else's metadata."""
    found = sa.MetaData()
    with engine_of(database) as engine:
        found.reflect(engine)
    return found


def differences(database: Database, wanted: sa.MetaData) -> list[Any]:
    with engine_of(database) as engine, engine.connect() as conn:
        context = MigrationContext.configure(
            conn, opts={"compare_type": True, "compare_server_default": True, "include_schemas": True}
        )
        return list(compare_metadata(context, wanted))


def kinds(found: list[Any]) -> list[str]:
    """The operations by name: `add_column`, `modify_type`."""
    return [step[0][0] if isinstance(step, list) else step[0] for step in found]
