"""An event that kills its lane ends as dead, and those that travelled with it are delivered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.databases import Database
from tests.history.checker import check
from tests.history.harness import Draft, Harness, open_harness
from tests.history.publisher import Behaviour
from tests.waiting import wait_for

PASS, POISON, FAIL_FIRST = Behaviour.PASS, Behaviour.POISON, Behaviour.FAIL_FIRST
ATTEMPTS = 3


def relay_to_the_end(harness: Harness) -> None:
    relay = harness.relay()

    def over() -> bool:
        relay.tick()
        return harness.finished()

    wait_for(over, timeout=30, what="the end of the backlog")
    relay.stop()


def source(lease: str, **more: Any) -> dict[str, Any]:
    retry = {"base_delay": "50ms", "max_delay": "50ms", "max_attempts": ATTEMPTS}
    return {"lease": lease, "slots": 1, "retry": retry, **more}


@pytest.mark.parametrize("lease", ["row", "slot"])
def test_a_poison_event_dies_alone(lease: str, database: Database, tmp_path: Path) -> None:
    with open_harness(database, tmp_path, hosting={"lanes": 1}, source=source(lease)) as harness:
        before = harness.write(*[Draft("before")] * 3, Draft(None))
        (poison,) = harness.write(Draft("k", POISON))
        behind = harness.write(Draft("k"), Draft("after"), Draft(None))

        relay_to_the_end(harness)

        history = harness.history()
        assert check(history) == []
        assert history.rows[poison].status == "DEAD"
        assert history.rows[poison].attempts == ATTEMPTS
        assert {history.rows[id].status for id in (*before, *behind)} == {"DELIVERED"}
        # They were in flight when it first killed the lane, and alone from then on.
        assert all(history.rows[id].attempts <= 1 for id in (*before, *behind))
        died = [entry.process for entry in history.entries if entry.deed == "died"]
        assert len(died) == len(set(died)) == ATTEMPTS
        batches = [(e.process, e.batch) for e in history.entries if e.deed == "claimed"]
        together = [batches.count((e.process, e.batch)) for e in history.entries if e.deed == "died"]
        assert together[1:] == [1] * (ATTEMPTS - 1)


@pytest.mark.parametrize("lease", ["row", "slot"])
def test_it_is_found_behind_a_long_blocked_key(lease: str, database: Database, tmp_path: Path) -> None:
    """What waits behind a failure is not in flight, and must not hide what is."""
    patient = {"base_delay": "1h", "max_delay": "1h", "max_attempts": ATTEMPTS}
    with open_harness(
        database,
        tmp_path,
        hosting={"lanes": 1},
        source={**source(lease), "batch_size": 2, "retry": patient},
    ) as harness:
        harness.write(Draft("blocked", FAIL_FIRST), *[Draft("blocked")] * 10)
        (poison,) = harness.write(Draft("k", POISON))
        relay = harness.relay()

        def dead() -> bool:
            relay.tick()
            return harness.history().rows[poison].status == "DEAD"

        wait_for(dead, timeout=30)
        relay.stop()


def test_a_parked_key_stays_parked_when_a_suspect_dies(database: Database, tmp_path: Path) -> None:
    with open_harness(
        database, tmp_path, hosting={"lanes": 1}, source=source("slot", on_dead="park")
    ) as harness:
        harness.write(Draft("k", POISON), Draft("k"), Draft("other"))

        relay_to_the_end(harness)

        assert check(harness.history()) == []
