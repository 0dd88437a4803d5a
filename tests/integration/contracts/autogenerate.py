"""What Alembic finds to do in a test's database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from textwrap import dedent
from typing import Any

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata, produce_migrations, render_python_code
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.dialects import postgresql

from outspark.migrations import IncludeName
from tests.databases import Database

COMPARE = {"compare_type": True, "compare_server_default": True}


@contextmanager
def engine_of(database: Database) -> Iterator[sa.Engine]:
    engine = sa.create_engine(database.url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        yield engine
    finally:
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


def differences(
    database: Database,
    wanted: sa.MetaData,
    include_name: Callable[[sa.Connection], IncludeName] | None = None,
) -> list[Any]:
    with engine_of(database) as engine, engine.connect() as conn:
        opts: dict[str, Any] = {**COMPARE, "include_schemas": True}
        if include_name is not None:
            opts["include_name"] = include_name(conn)
        return list(compare_metadata(MigrationContext.configure(conn, opts=opts), wanted))


def autogenerate(database: Database, wanted: sa.MetaData) -> str:
    """Write the migration that brings the database to `wanted`, as `alembic revision` would, and run it."""
    with engine_of(database) as engine, engine.begin() as conn:
        context = MigrationContext.configure(conn, opts=COMPARE)
        upgrade = produce_migrations(context, wanted).upgrade_ops
        assert upgrade is not None
        # Indented as the body of a function, but for its first line.
        code = dedent("    " + render_python_code(upgrade, migration_context=context))
        exec(code, {"op": Operations(context), "sa": sa, "postgresql": postgresql})
        return code


def kinds(found: list[Any]) -> list[str]:
    """The operations by name: `add_column`, `modify_type`."""
    return [step[0][0] if isinstance(step, list) else step[0] for step in found]
