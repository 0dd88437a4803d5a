"""A place with one broker for each test of the relay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.databases import Database
from tests.integration.relay.harness import Harness, close_harness, open_harness
from tests.integration.relay.jeap_harness import JeapHarness, open_jeap_harness


@pytest.fixture
def harness(database: Database) -> Iterator[Harness]:
    harness = open_harness(database)
    yield harness
    close_harness(harness)


@pytest.fixture(params=["row", "slot"])
def leased(request: pytest.FixtureRequest, harness: Harness) -> Harness:
    """A place for each way of leasing."""
    harness.source["lease"] = request.param
    return harness


@pytest.fixture
def jeap(database: Database) -> Iterator[JeapHarness]:
    harness = open_jeap_harness(database)
    yield harness
    close_harness(harness)
