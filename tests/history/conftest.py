"""How many random histories are played: one of each kind in the suite, several under `make faults`."""

from __future__ import annotations

import os
import random

import pytest

ROUNDS = 5


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "round" in metafunc.fixturenames:
        chosen = "faults" in metafunc.config.getoption("markexpr")
        metafunc.parametrize("round", range(ROUNDS if chosen else 1))


@pytest.fixture
def seed() -> int:
    number = int(os.environ.get("OUTSPARK_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"OUTSPARK_SEED={number}")
    return number
