"""Random histories on a jEAP outbox: messages for the relay and messages that services send themselves, mixed.

Order is promised among what the relay sends, by key and, without one, by topic. Of what is sent at once nothing is
lost, nothing goes out that was rolled back, and nothing goes out twice without a reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.databases import Database
from tests.history import variants
from tests.history.brokers import Broker, make_broker
from tests.history.checker import check
from tests.history.harness import Draft, Harness, open_harness
from tests.history.jeap_table import JeapTable
from tests.history.publisher import Behaviour
from tests.history.random_play import HARMLESS, RandomPlay
from tests.waiting import wait_for

HOSTING = {"lanes": 2, "shift": "2s"}
MISHAPS = ("kill", "kill", "kill", "restart", "restart", "broker kill")
SPECIAL = (*HARMLESS, Behaviour.POISON)
EVENTS = 300
IMMEDIATE = 0.4
FAILURE_RATE = 0.05

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def kafka() -> Iterator[Broker]:
    broker = make_broker("kafka")
    broker.start()
    yield broker
    broker.close()


@pytest.mark.needs("kafka")
def test_two_relays_and_a_service_keep_every_promise(
    round: int, seed: int, kafka: Broker, database: Database, tmp_path: Path
) -> None:
    kafka.start()
    rng = random.Random(seed)
    conduct = {"seed": seed, "failure_rate": FAILURE_RATE, "broker": kafka}
    with open_harness(database, tmp_path, hosting=HOSTING, contract=JeapTable, **conduct) as harness:
        # Before anything goes wrong, so that the service has sent something in every history.
        harness.write(Draft("k", immediate=True))
        harness.relay()
        harness.relay()
        RandomPlay(
            harness, rng, EVENTS, special=SPECIAL, mishaps=MISHAPS, delayed=0, immediate=IMMEDIATE
        ).play()

        history = harness.history()
        assert check(history) == []
        # Both ways were gone, and some messages changed from one to the other.
        assert _senders(harness) == {("service", True), ("r", True), ("r", False)}


def _senders(harness: Harness) -> set[tuple[str, bool]]:
    """Who delivered, and whether that was to be at once."""
    immediate = dict(harness.query("SELECT message_id::uuid, send_immediately FROM deferred_message"))
    return {
        (entry.process.partition(".")[0].rstrip("0123456789"), immediate[entry.event])
        for entry in harness.history().entries
        if entry.deed == "delivered"
    }


@dataclass(frozen=True, slots=True)
class Scene:
    """A history in which one variant breaks one promise. `breach` is what the checker says then."""

    variant: str
    play: Callable[[Harness, str | None], None]
    breach: str


def _relay(harness: Harness, variant: str | None, *drafts: Draft) -> None:
    harness.write(*drafts)
    relay = harness.relay(variant)

    def over() -> bool:
        relay.tick()
        return harness.finished()

    wait_for(over, timeout=20, what="the end of the backlog")
    relay.stop()


def _a_crash_before_delivery(harness: Harness, variant: str | None) -> None:
    _relay(harness, variant, Draft("k", Behaviour.KILL_BEFORE), Draft("k"))


def _a_failure_in_front_of_its_topic(harness: Harness, variant: str | None) -> None:
    _relay(harness, variant, Draft(None, Behaviour.FAIL_FIRST), Draft(None), Draft(None, type="other"))


def _nothing_special(harness: Harness, variant: str | None) -> None:
    _relay(harness, variant, Draft("k"), Draft("k"))


def _a_service_that_takes_its_time(harness: Harness, variant: str | None) -> None:
    """The relay is at work while the message is committed and not yet sent by its service."""
    (first,) = harness.write(Draft("k"))
    relay = harness.relay(variant)
    table = harness.table
    assert isinstance(table, JeapTable)
    wait_for(lambda: harness.did(first, "delivered"))

    def in_the_meantime() -> None:
        (later,) = harness.write(Draft("k"))
        wait_for(lambda: harness.did(later, "delivered"))

    table.before_sending(in_the_meantime)
    harness.write(Draft("k", immediate=True))
    wait_for(harness.finished)
    relay.stop()


SCENES = [
    Scene("settle_before_publish", _a_crash_before_delivery, "is settled as delivered, but was not"),
    Scene("ignore_schedule_after", _a_service_that_takes_its_time, "after its delivery by r0"),
    Scene("ignore_topic_order", _a_failure_in_front_of_its_topic, "overtook"),
    Scene("claim_backwards", _nothing_special, "overtook"),
]


def test_every_variant_has_a_scene() -> None:
    assert {scene.variant for scene in SCENES} > variants.OF_JEAP.keys()


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.variant)
class TestEachVariant:
    def test_the_relay_passes(self, scene: Scene, database: Database, tmp_path: Path) -> None:
        assert _breaches(scene, None, database, tmp_path) == []

    def test_the_broken_relay_is_caught(self, scene: Scene, database: Database, tmp_path: Path) -> None:
        breaches = _breaches(scene, scene.variant, database, tmp_path)

        assert any(scene.breach in breach for breach in breaches)


def _breaches(scene: Scene, variant: str | None, database: Database, folder: Path) -> list[str]:
    source = {"slots": 1, "retry": {"base_delay": "300ms", "max_delay": "300ms", "max_attempts": 5}}
    with open_harness(database, folder, hosting={"lanes": 1}, source=source, contract=JeapTable) as harness:
        scene.play(harness, variant)
        return check(harness.history())
