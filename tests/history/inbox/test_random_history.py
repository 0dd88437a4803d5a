"""Random histories of inboxes keep what each strategy promises: redelivery, copies in other partitions, crashes, and
handlers of every bad kind. `OUTSPARK_SEED` plays one again; `make faults` plays more of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outspark.config.inbox import Strategy
from tests.databases import Database
from tests.history.inbox.brokers import Broker
from tests.history.inbox.checker import check
from tests.history.inbox.harness import open_harness
from tests.history.inbox.history import History
from tests.history.inbox.random_play import DEADLY, MISHAPS, MISHAPS_WITH_CUT, RandomPlay

pytestmark = pytest.mark.faults

ACCIDENT_RATE = 0.06
IN_ORDER = {"ordering": "key"}
PARTITIONED = {"partitioned": True}

ON_NATS = [
    pytest.param(Strategy.EXACTLY_ONCE, {}, id="exactly-once"),
    pytest.param(Strategy.EXACTLY_ONCE, PARTITIONED | IN_ORDER, id="exactly-once partitioned in order"),
    pytest.param(Strategy.AT_LEAST_ONCE_ON_PERSIST, IN_ORDER, id="on persist in order"),
    pytest.param(Strategy.AT_LEAST_ONCE_ON_SUCCESS, PARTITIONED, id="on success partitioned"),
    pytest.param(Strategy.AT_MOST_ONCE, {}, id="at-most-once"),
]


@pytest.mark.needs("nats")
@pytest.mark.parametrize(("strategy", "options"), ON_NATS)
def test_on_nats(
    strategy: Strategy,
    options: dict[str, Any],
    round: int,
    seed: int,
    nats_broker: Broker,
    database: Database,
    tmp_path: Path,
) -> None:
    # Two consumers at once have no order between them, and NATS gives messages of one subject to both.
    in_order = options.get("ordering") == "key"
    consumers, mishaps = (1, MISHAPS) if in_order else (2, MISHAPS_WITH_CUT)
    history = _play(seed, nats_broker, database, tmp_path, strategy, consumers, mishaps, options)

    assert check(history) == []
    assert history.interruptions > 0


@pytest.mark.needs("kafka")
@pytest.mark.parametrize("ordering", ["none", "key"])
def test_on_kafka(
    ordering: str, round: int, seed: int, kafka_broker: Broker, database: Database, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    strategy = Strategy.EXACTLY_ONCE if ordering == "key" else rng.choice(list(Strategy))
    options = {"ordering": ordering, "partitioned": rng.random() < 0.5}
    history = _play(seed, kafka_broker, database, tmp_path, strategy, 2, MISHAPS_WITH_CUT, options)

    assert check(history) == []


@pytest.mark.needs("kafka")
@pytest.mark.long
@pytest.mark.parametrize("strategy", list(Strategy))
def test_at_length_on_kafka(
    strategy: Strategy, round: int, seed: int, kafka_broker: Broker, database: Database, tmp_path: Path
) -> None:
    options = {"ordering": "key", "partitioned": round % 2 == 0}
    mishaps, more = MISHAPS_WITH_CUT * 3, {"messages": 400, "special": DEADLY * 2}
    history = _play(seed, kafka_broker, database, tmp_path, strategy, 2, mishaps, options, **more)

    assert check(history) == []


def _play(
    seed: int,
    broker: Broker,
    database: Database,
    folder: Path,
    strategy: Strategy,
    consumers: int,
    mishaps: Sequence[str],
    options: dict[str, Any],
    **more: Any,
) -> History:
    conduct = {"seed": seed, "accident_rate": ACCIDENT_RATE}
    with open_harness(
        database, folder, broker, strategy, consumers=consumers, shift="3s", **options, **conduct
    ) as harness:
        RandomPlay(harness, random.Random(seed), mishaps=mishaps, **more).play()
        return harness.history()
