"""The database server crashes: marks that were not on disk are gone, and what they marked goes out again, in order."""

from __future__ import annotations

from contextlib import closing

import pytest

from outspark.outcome import Retry
from outspark.tools.servers.postgres import Postgres
from tests.databases import Database
from tests.integration.relay.place import Place, close_place, open_place

FORGETFUL = {"wal_writer_delay": "10s"}
"""So long that nothing gets to the disk by itself."""
NAMES = [f"{number:02}" for number in range(20)]


@pytest.mark.parametrize("lease", ["row", "slot"])
def test_marks_lost_in_a_crash_cost_duplicates_and_nothing_else(lease: str) -> None:
    with Postgres(options=FORGETFUL) as server, closing(Database(server.url())) as database:
        place = open_place(database)
        place.source["lease"] = lease
        place.enqueue(*NAMES, key="k")
        unmarked: list[int] = []

        def crashed_and_done() -> bool:
            if place.waiting():
                return False
            if not unmarked:
                _crash(server, place)
                unmarked.append(place.waiting())
            return not place.waiting()

        place.work(crashed_and_done, timeout=60)
        close_place(place)

    assert unmarked[0] > 0
    assert place.broker.delivered() == NAMES + NAMES[-unmarked[0] :]


def test_a_failure_is_on_disk_with_all_that_was_settled_beside_it() -> None:
    with Postgres(options=FORGETFUL) as server, closing(Database(server.url())) as database:
        place = open_place(database)
        place.source["retry"] = {"base_delay": "1h"}
        place.enqueue("good", key="g")
        place.enqueue("bad", key="b")
        place.broker.answers["bad"] = [Retry("no luck")]

        def crashed() -> bool:
            if place.states() != settled:
                return False
            _crash(server, place)
            return True

        settled = {"good": ("DELIVERED", 0), "bad": ("PENDING", 1)}
        place.work(crashed, timeout=60)

        assert place.states() == settled
        close_place(place)


def _crash(server: Postgres, place: Place) -> None:
    server.stop(immediate=True)
    server.start()
    place.conn = place.database.connect()
