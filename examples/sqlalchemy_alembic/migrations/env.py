"""Alembic's environment: the service's metadata, and its database."""

from __future__ import annotations

from alembic import context
from shop import Base, database_url
from sqlalchemy import create_engine

engine = create_engine(database_url())
with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
