"""Random histories keep every promise. `OUTSPARK_SEED` plays one again; `make faults` plays many."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.databases import Database
from tests.history.checker import check
from tests.history.foreign import ForeignRelay
from tests.history.random_play import HARMLESS, RandomPlay
from tests.history.stage import open_stage

CASES: dict[str, dict[str, Any]] = {
    "row": {"lease": "row"},
    "slot": {"lease": "slot"},
    "row parked": {"lease": "row", "on_dead": "park"},
}


def seed() -> int:
    return int(os.environ.get("OUTSPARK_SEED") or random.SystemRandom().randrange(1_000_000))


def play(database: Database, folder: Path, number: int, source: dict[str, Any]) -> None:
    print(f"OUTSPARK_SEED={number}")
    rng = random.Random(number)
    relay = {"lanes": 2, "shift": "500ms"}
    keeps_order = rng.random() < 0.5
    with open_stage(
        database,
        folder,
        relay=relay,
        source=source,
        seed=number,
        failure_rate=0.08,
        keeps_order=keeps_order,
    ) as stage:
        stage.relay()
        stage.relay()
        RandomPlay(stage, rng).play()
        assert check(stage.history()) == []


@pytest.mark.parametrize("case", ["row", "slot"])
def test_a_random_history_keeps_every_promise(case: str, database: Database, tmp_path: Path) -> None:
    play(database, tmp_path, seed(), CASES[case])


def compete(database: Database, folder: Path, number: int) -> None:
    print(f"OUTSPARK_SEED={number}")
    source = {"ordering": "none", "lease_timeout": "2s"}
    with open_stage(
        database, folder, relay={"lanes": 2, "shift": "500ms"}, source=source, seed=number, failure_rate=0.08
    ) as stage:
        stage.relay()
        foreign = ForeignRelay(database.url, stage.conduct, stage.settings.sources["outbox"].batch_size)
        stage.relays.append(foreign)
        RandomPlay(stage, random.Random(number), special=HARMLESS).play()
        history = stage.history()
        assert check(history) == []
        makes = {entry.process.split(".")[0] for entry in history.entries if entry.deed == "delivered"}
        assert makes == {"r0", "foreign"}


def test_a_relay_of_another_make_may_compete(database: Database, tmp_path: Path) -> None:
    compete(database, tmp_path, seed())


@pytest.mark.faults
@pytest.mark.parametrize("round", range(5))
def test_a_relay_of_another_make_may_compete_many_times(
    round: int, database: Database, tmp_path: Path
) -> None:
    compete(database, tmp_path, seed())


@pytest.mark.faults
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("round", range(5))
def test_many_random_histories_keep_every_promise(
    round: int, case: str, database: Database, tmp_path: Path
) -> None:
    play(database, tmp_path, seed(), CASES[case])
