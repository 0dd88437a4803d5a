"""The database server crashes: marks that were not on disk are gone, and what they marked goes out again, in order."""

from __future__ import annotations

from contextlib import closing

import pytest

from outspark.outcome import Retry
from outspark.tools.servers.postgres import Postgres
from tests.databases import Database
from tests.integration.relay.harness import Harness, close_harness, open_harness

FORGETFUL = {"wal_writer_delay": "10s"}
"""So long that nothing gets to the disk by itself."""
NAMES = [f"{number:02}" for number in range(20)]


@pytest.mark.parametrize("lease", ["row", "slot"])
def test_marks_lost_in_a_crash_cost_duplicates_and_nothing_else(lease: str) -> None:
    with Postgres(options=FORGETFUL) as server, closing(Database(server.url())) as database:
        harness = open_harness(database)
        harness.source["lease"] = lease
        harness.enqueue(*NAMES, key="k")
        unmarked: list[int] = []

        def crashed_and_done() -> bool:
            if harness.waiting():
                return False
            if not unmarked:
                _crash(server, harness)
                unmarked.append(harness.waiting())
            return not harness.waiting()

        harness.work(crashed_and_done, timeout=60)
        close_harness(harness)

    assert unmarked[0] > 0
    assert harness.broker.delivered() == NAMES + NAMES[-unmarked[0] :]


def test_a_failure_is_on_disk_with_all_that_was_settled_beside_it() -> None:
    with Postgres(options=FORGETFUL) as server, closing(Database(server.url())) as database:
        harness = open_harness(database)
        harness.source["retry"] = {"base_delay": "1h"}
        harness.enqueue("good", key="g")
        harness.enqueue("bad", key="b")
        harness.broker.answers["bad"] = [Retry("no luck")]

        def crashed() -> bool:
            if harness.states() != settled:
                return False
            _crash(server, harness)
            return True

        settled = {"good": ("DELIVERED", 0), "bad": ("PENDING", 1)}
        harness.work(crashed, timeout=60)

        assert harness.states() == settled
        close_harness(harness)


def _crash(server: Postgres, harness: Harness) -> None:
    server.stop(immediate=True)
    server.start()
    harness.conn = harness.database.connect()
