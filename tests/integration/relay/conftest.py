"""A place with one broker for each test of the relay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.databases import Database
from tests.integration.relay.jeap_place import JeapPlace, open_jeap_place
from tests.integration.relay.place import Place, close_place, open_place


@pytest.fixture
def place(database: Database) -> Iterator[Place]:
    place = open_place(database)
    yield place
    close_place(place)


@pytest.fixture(params=["row", "slot"])
def leased(request: pytest.FixtureRequest, place: Place) -> Place:
    """A place for each way of leasing."""
    place.source["lease"] = request.param
    return place


@pytest.fixture
def jeap(database: Database) -> Iterator[JeapPlace]:
    place = open_jeap_place(database)
    yield place
    close_place(place)
