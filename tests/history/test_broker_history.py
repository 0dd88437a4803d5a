"""Random histories on real brokers that are stopped and killed on the way. What was delivered, and in which order,
is read from the broker; what its publisher told the lane counts for nothing.

`OUTSPARK_SEED` plays one again; `make faults` plays more of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.databases import Database
from tests.history.brokers import NAMES, Broker, make_broker
from tests.history.checker import check
from tests.history.harness import Draft, Harness, open_harness
from tests.history.publisher import Behaviour
from tests.history.random_play import MISHAPS_WITH_BROKER, RandomPlay
from tests.waiting import wait_for

# Shorter shifts would only measure how fast clients connect.
HOSTING = {"lanes": 2, "shift": "2s"}
FAILURE_RATE = 0.05

pytestmark = pytest.mark.faults


def on(*names: str) -> pytest.MarkDecorator:
    brokers = [pytest.param(name, marks=pytest.mark.needs(name)) for name in names]
    return pytest.mark.parametrize("running_broker", brokers, indirect=True)


@pytest.fixture(scope="module")
def running_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    broker = make_broker(request.param)
    broker.start()
    yield broker
    broker.close()


@pytest.fixture
def broker(running_broker: Broker) -> Broker:
    """Running, whatever the test before did to it."""
    running_broker.start()
    return running_broker


@on(*NAMES)
def test_a_broker_that_goes_and_comes_breaks_no_promise(
    round: int, seed: int, broker: Broker, database: Database, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    source = {"lease": rng.choice(["row", "slot"])}
    conduct = {"seed": seed, "failure_rate": FAILURE_RATE, "broker": broker}
    with open_harness(database, tmp_path, hosting=HOSTING, source=source, **conduct) as harness:
        harness.relay()
        harness.relay()
        RandomPlay(harness, rng, events=400, mishaps=MISHAPS_WITH_BROKER).play()

        history = harness.history()
        assert check(history) == []
        assert history.broker_stops == 2


@dataclass(frozen=True, slots=True)
class Scene:
    """A history in which one variant breaks one promise. `breach` is what the checker says then."""

    variant: str
    play: Callable[[Harness, str | None], None]
    breach: str


def _a_crash_before_delivery(harness: Harness, variant: str | None) -> None:
    _relay(harness, variant, Draft("k", Behaviour.KILL_BEFORE), Draft("k"))


def _a_failure_in_front(harness: Harness, variant: str | None) -> None:
    _relay(harness, variant, Draft("k", Behaviour.FAIL_FIRST), Draft("k"))


def _nothing_special(harness: Harness, variant: str | None) -> None:
    _relay(harness, variant, Draft("k"), Draft("k"))


def _a_broker_that_is_away(harness: Harness, variant: str | None) -> None:
    (event,) = harness.write(Draft("k"))
    harness.end_broker(kill=False)
    relay = harness.relay(variant)
    wait_for(lambda: harness.did(event, "down") or harness.did(event, "acked"))
    harness.start_broker()
    wait_for(harness.finished)
    relay.stop()


def _relay(harness: Harness, variant: str | None, *drafts: Draft) -> None:
    harness.write(*drafts)
    relay = harness.relay(variant)

    def over() -> bool:
        relay.tick()
        return harness.finished()

    wait_for(over, timeout=30, what="the end of the backlog")
    relay.stop()


UNTRUE = "is settled as delivered, but was not"
ON_EVERY_BROKER = Scene("settle_before_publish", _a_crash_before_delivery, UNTRUE)
ON_A_QUICK_BROKER = [
    Scene("believe_in_delivery", _a_broker_that_is_away, UNTRUE),
    Scene("doubt_delivery", _nothing_special, "came twice"),
    Scene("hold_nothing", _a_failure_in_front, "overtook"),
]


@on(*NAMES)
def test_the_checker_catches_a_broken_relay(broker: Broker, database: Database, tmp_path: Path) -> None:
    assert _is_caught(ON_EVERY_BROKER, broker, database, tmp_path)


@on("redis")
@pytest.mark.parametrize("scene", ON_A_QUICK_BROKER, ids=lambda scene: scene.variant)
class TestEachVariant:
    def test_the_relay_passes(self, scene: Scene, broker: Broker, database: Database, tmp_path: Path) -> None:
        assert _breaches(scene, None, broker, database, tmp_path) == []

    def test_the_broken_relay_is_caught(
        self, scene: Scene, broker: Broker, database: Database, tmp_path: Path
    ) -> None:
        assert _is_caught(scene, broker, database, tmp_path)


def _is_caught(scene: Scene, broker: Broker, database: Database, folder: Path) -> bool:
    breaches = _breaches(scene, scene.variant, broker, database, folder)
    return any(scene.breach in breach for breach in breaches)


def _breaches(
    scene: Scene, variant: str | None, broker: Broker, database: Database, folder: Path
) -> list[str]:
    with open_harness(database, folder, hosting={"lanes": 1}, source={"slots": 1}, broker=broker) as harness:
        scene.play(harness, variant)
        return check(harness.history())
