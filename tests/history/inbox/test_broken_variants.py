"""The checker is trusted because it catches each of these: the same short history, kept and broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from outspark.config.inbox import Strategy
from tests.databases import Database
from tests.history.inbox import variants
from tests.history.inbox.brokers import Broker
from tests.history.inbox.checker import check
from tests.history.inbox.drafts import Behaviour, Draft, uuid7_of
from tests.history.inbox.harness import Harness, open_harness

pytestmark = [pytest.mark.needs("nats"), pytest.mark.faults]


@dataclass(frozen=True, slots=True)
class Scene:
    """A history in which one rule of the inbox decides. `breach` is what the checker says when it is broken."""

    play: Callable[[Harness], None]
    breach: str
    options: dict[str, Any] = field(default_factory=dict)


def _some(harness: Harness) -> None:
    harness.publish(*(Draft(f"m{number}", id=f"order-{number}") for number in range(3)))
    harness.finish()


def _one(behaviour: Behaviour) -> Callable[[Harness], None]:
    def play(harness: Harness) -> None:
        harness.publish(Draft("m", behaviour, id="order-1"))
        harness.finish()

    return play


def _an_idempotency_key(harness: Harness) -> None:
    harness.publish(Draft("m", id="order-1", idempotency_key="order-1/paid"))
    harness.finish()


def _a_second_publishing(harness: Harness) -> None:
    draft = Draft("m", id=uuid7_of(1))
    harness.publish(draft)
    harness.wait_for(lambda: harness.did("begun", "m"))
    harness.publish(draft, partition=2)
    harness.finish()


def _a_failure_in_front(harness: Harness) -> None:
    harness.publish(Draft("a", Behaviour.FAIL_FIRST, key="k"), Draft("b", key="k"))
    harness.finish()


ONE = {"inboxes": ["billing"], "workers": 1}
TWICE = "has 2 effects"

SCENES: dict[str, Scene] = {
    "acknowledge_first": Scene(_some, "was lost for", {**ONE, "once": "die after commit"}),
    "acknowledge_when_kept": Scene(
        _one(Behaviour.FAIL_FIRST),
        "before it was final",
        {**ONE, "strategy": Strategy.AT_LEAST_ONCE_ON_SUCCESS},
    ),
    "complete_apart": Scene(_one(Behaviour.REFUSE_FIRST), TWICE, ONE),
    "complete_early": Scene(
        _one(Behaviour.FAIL_FIRST), "is dead after", {**ONE, "strategy": Strategy.AT_LEAST_ONCE_ON_PERSIST}
    ),
    "forget_groups_of_keys": Scene(_an_idempotency_key, "was lost for", {"workers": 1}),
    "forget_groups_of_ids": Scene(_some, "was lost for", {"workers": 1, "partitioned": True}),
    "take_time_from_the_clock": Scene(
        _a_second_publishing, "was taken in 2 times", {**ONE, "partitioned": True}
    ),
    "ignore_blocked_keys": Scene(
        _a_failure_in_front, "overtook", {**ONE, "ordering": "key", "retry": "500ms"}
    ),
    "lose_locks_unnoticed": Scene(_one(Behaviour.UNLOCK_FIRST), TWICE, ONE),
    "stand_no_guard": Scene(_one(Behaviour.COMMIT_FIRST), TWICE, ONE),
}
AT_MOST_ONCE = Scene(
    _one(Behaviour.COMMIT_FIRST), "more than once", {**ONE, "strategy": Strategy.AT_MOST_ONCE}
)
"""What `complete_apart` does to a strategy that completes first."""

CASES = [*SCENES.items(), ("complete_apart", AT_MOST_ONCE)]


def _breaches(
    scene: Scene, variant: str | None, broker: Broker, database: Database, folder: Path
) -> list[str]:
    with open_harness(database, folder, broker, variant=variant, **scene.options) as harness:
        scene.play(harness)
        return check(harness.history())


def test_every_variant_has_a_scene() -> None:
    assert SCENES.keys() == variants.BROKEN.keys()


@pytest.mark.parametrize(("variant", "scene"), [pytest.param(name, scene, id=name) for name, scene in CASES])
class TestEachVariant:
    def test_the_inbox_passes(
        self, variant: str, scene: Scene, nats_broker: Broker, database: Database, tmp_path: Path
    ) -> None:
        assert _breaches(scene, None, nats_broker, database, tmp_path) == []

    def test_the_broken_inbox_is_caught(
        self, variant: str, scene: Scene, nats_broker: Broker, database: Database, tmp_path: Path
    ) -> None:
        breaches = _breaches(scene, variant, nats_broker, database, tmp_path)

        assert any(scene.breach in breach for breach in breaches), breaches
