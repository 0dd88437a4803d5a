"""Random histories keep every promise. `OUTSPARK_SEED` plays one again; `make faults` plays more of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.databases import Database
from tests.history.checker import check
from tests.history.foreign import ForeignRelay
from tests.history.harness import open_harness
from tests.history.history import History
from tests.history.random_play import HARMLESS, RandomPlay

HOSTING = {"lanes": 2, "shift": "500ms"}
FAILURE_RATE = 0.08

pytestmark = pytest.mark.faults


@pytest.mark.parametrize(
    "source",
    [{"lease": "row"}, {"lease": "slot"}, {"lease": "row", "on_dead": "park"}],
    ids=["row", "slot", "row parked"],
)
def test_two_relays_keep_every_promise(
    source: dict[str, Any], round: int, seed: int, database: Database, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    conduct = {"seed": seed, "failure_rate": FAILURE_RATE, "keeps_order": rng.random() < 0.5}
    with open_harness(database, tmp_path, hosting=HOSTING, source=source, **conduct) as harness:
        harness.relay()
        harness.relay()
        RandomPlay(harness, rng).play()

        assert check(harness.history()) == []


def test_a_relay_of_another_make_may_compete(
    round: int, seed: int, database: Database, tmp_path: Path
) -> None:
    """No event is taken by both while its lease holds."""
    source = {"ordering": "none", "lease_timeout": "2s"}
    with open_harness(
        database, tmp_path, hosting=HOSTING, source=source, seed=seed, failure_rate=FAILURE_RATE
    ) as harness:
        harness.relay()
        batch_size = harness.settings.sources["outbox"].batch_size
        harness.relays.append(ForeignRelay(database.url, harness.conduct, batch_size))
        RandomPlay(harness, random.Random(seed), special=HARMLESS).play()

        history = harness.history()
        assert check(history) == []
        assert _makes(history) == {"r0", "foreign"}


def _makes(history: History) -> set[str]:
    return {entry.process.split(".")[0] for entry in history.entries if entry.deed == "delivered"}
