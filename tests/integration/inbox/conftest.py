from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.databases import Database
from tests.integration.inbox.harness import Harness, open_harness


@pytest.fixture
def harness(database: Database) -> Iterator[Harness]:
    with closing(open_harness(database)) as harness:
        yield harness


@pytest.fixture
def parted(database: Database) -> Iterator[Harness]:
    """A place whose inbox is partitioned, for today and tomorrow."""
    with closing(open_harness(database, partitioned=True)) as harness:
        yield harness


@pytest.fixture(params=["plain", "partitioned"])
def either(request: pytest.FixtureRequest, database: Database) -> Iterator[Harness]:
    """A place of each kind."""
    with closing(open_harness(database, partitioned=request.param == "partitioned")) as harness:
        yield harness
