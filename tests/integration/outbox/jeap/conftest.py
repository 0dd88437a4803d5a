from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa

from tests.databases import Database
from tests.integration.outbox.jeap.harness import Harness


@pytest.fixture
def harness(database: Database) -> Iterator[Harness]:
    with closing(Harness(database)) as harness:
        harness.create()
        yield harness


@pytest.fixture
def engine(database: Database) -> Iterator[sa.Engine]:
    """With a single connection, so that whoever needs a second one at the same time is found out."""
    url = database.url.replace("postgresql://", "postgresql+psycopg://")
    engine = sa.create_engine(url, pool_size=1, max_overflow=0, pool_timeout=5)
    yield engine
    engine.dispose()
