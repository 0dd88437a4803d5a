from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.databases import Database
from tests.integration.inbox.place import Place, open_place


@pytest.fixture
def place(database: Database) -> Iterator[Place]:
    with closing(open_place(database)) as place:
        yield place


@pytest.fixture
def parted(database: Database) -> Iterator[Place]:
    """A place whose inbox is partitioned, for today and tomorrow."""
    with closing(open_place(database, partitioned=True)) as place:
        yield place


@pytest.fixture(params=["plain", "partitioned"])
def either(request: pytest.FixtureRequest, database: Database) -> Iterator[Place]:
    """A place of each kind."""
    with closing(open_place(database, partitioned=request.param == "partitioned")) as place:
        yield place
