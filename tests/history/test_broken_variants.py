"""The checker is trusted because it catches each of these: the same short history, kept and broken."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.databases import Database
from tests.history import variants
from tests.history.checker import check
from tests.history.harness import Draft, Harness, open_harness
from tests.history.publisher import Behaviour
from tests.waiting import wait_for

WAITS_FOR_A_LOCK = """\
-- Is a lane waiting for a row that somebody else has locked?
SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'outspark%%' AND wait_event_type = 'Lock'"""


@dataclass(frozen=True, slots=True)
class Scene:
    """A history in which one rule of the lane decides. `breach` is what the checker says when it is broken."""

    play: Callable[[Harness, str | None], None]
    breach: str
    source: dict[str, Any] = field(default_factory=dict)


def _run(harness: Harness, variant: str | None, *drafts: Draft) -> None:
    """Write, relay to the end, stop."""
    harness.write(*drafts)
    relay = harness.relay(variant)

    def over() -> bool:
        relay.tick()
        return harness.finished()

    wait_for(over, timeout=20, what="the end of the backlog")
    relay.stop()


def _a_retry_across_a_restart(harness: Harness, variant: str | None) -> None:
    head, _ = harness.write(Draft("k", Behaviour.FAIL_FIRST), Draft("k"))
    relay = harness.relay(variant)
    wait_for(lambda: harness.query("SELECT 1 FROM openoutbox_events WHERE attempts = 1"))
    relay.stop()
    wait_for(
        lambda: harness.query(
            "SELECT 1 FROM openoutbox_events WHERE event_id = %(id)s AND available_at < now()", id=head
        )
    )
    _run(harness, variant, Draft("other"))


def _a_failure_in_front(harness: Harness, variant: str | None) -> None:
    _run(harness, variant, Draft("k", Behaviour.FAIL_FIRST), Draft("k"), Draft("other"))


def _a_failure_in_the_middle(harness: Harness, variant: str | None) -> None:
    _run(harness, variant, Draft("k"), Draft("k", Behaviour.FAIL_FIRST), Draft("k"))


def _a_locked_head(harness: Harness, variant: str | None) -> None:
    head, second = harness.write(Draft("k"), Draft("k"))
    with harness.database.connect() as conn, conn.transaction():
        conn.execute("SELECT 1 FROM openoutbox_events WHERE event_id = %s FOR UPDATE", [head])
        relay = harness.relay(variant)
        wait_for(lambda: harness.query(WAITS_FOR_A_LOCK) or harness.did(second, "delivered"))
    wait_for(harness.finished)
    relay.stop()


def _a_death_in_front_and_a_crash_behind(harness: Harness, variant: str | None) -> None:
    _run(harness, variant, Draft("k", Behaviour.DIE), Draft("k", Behaviour.KILL_AFTER))


def _a_crash_before_delivery(harness: Harness, variant: str | None) -> None:
    _run(harness, variant, Draft("k", Behaviour.KILL_BEFORE), Draft("k"))


def _a_crash_with_the_head_in_flight(harness: Harness, variant: str | None) -> None:
    _, second = harness.write(Draft("k", Behaviour.KILL_BEFORE), Draft("k"))
    relay = harness.relay(variant)

    def over() -> bool:
        relay.tick()
        return harness.did(second, "delivered")

    wait_for(over, timeout=20)
    relay.stop()


def _a_suspect_that_meets_an_outage(harness: Harness, variant: str | None) -> None:
    head, *_ = harness.write(Draft("k", Behaviour.KILL_BEFORE), Draft("k"), Draft("k"))
    relay = harness.relay(variant)
    wait_for(lambda: harness.did(head, "died"))
    harness.conduct.outage.touch()

    def tried_again() -> bool:
        relay.tick()
        return harness.did(head, "down")

    wait_for(tried_again)
    harness.conduct.outage.unlink()
    wait_for(harness.finished)
    relay.stop()


def _two_relays(harness: Harness, variant: str | None) -> None:
    harness.write(Draft("k", Behaviour.MEET), Draft("k"))
    relays = [harness.relay(variant), harness.relay(variant)]
    wait_for(harness.finished)
    for relay in relays:
        relay.stop()


def _a_scheduled_event_that_is_due(harness: Harness, variant: str | None) -> None:
    (scheduled,) = harness.write(Draft("k", delay=timedelta(milliseconds=1)))
    harness.write(Draft("k"))
    # As if the relay had been away for long: both have been due for an hour, the first one a little later.
    harness.query(
        "UPDATE openoutbox_events SET created_at = created_at - interval '1 hour',"
        " available_at = available_at - interval '1 hour'"
        " + CASE WHEN event_id = %(id)s THEN interval '1 minute' ELSE interval '0' END RETURNING 1",
        id=scheduled,
    )
    harness.written = {id: event.earlier(timedelta(hours=1)) for id, event in harness.written.items()}
    _run(harness, variant, Draft("other"))


SCENES: dict[str, list[Scene]] = {
    "claim_by_available_at": [
        Scene(_a_retry_across_a_restart, "overtook", {"batch_size": 1}),
        Scene(_a_scheduled_event_that_is_due, "overtook", {"batch_size": 1, "lease": "slot"}),
    ],
    "filter_rows_not_keys": [
        Scene(_a_failure_in_front, "overtook"),
        Scene(_a_failure_in_front, "overtook", {"lease": "slot"}),
    ],
    "skip_locked_heads": [Scene(_a_locked_head, "overtook")],
    "free_keys_early": [
        Scene(_a_failure_in_the_middle, "overtook"),
        Scene(_a_failure_in_the_middle, "overtook", {"lease": "slot"}),
    ],
    "hold_nothing": [Scene(_a_failure_in_front, "overtook")],
    "go_on_after_dead": [Scene(_a_death_in_front_and_a_crash_behind, "overtook")],
    "work_without_owning": [Scene(_two_relays, "after its delivery by", {"lease": "slot"})],
    "settle_before_publish": [
        Scene(_a_crash_before_delivery, "is settled as delivered, but was not"),
        Scene(_a_crash_before_delivery, "is settled as delivered, but was not", {"lease": "slot"}),
    ],
    "keep_blocked_suspects": [
        Scene(_a_suspect_that_meets_an_outage, "overtook"),
        Scene(_a_suspect_that_meets_an_outage, "overtook", {"lease": "slot"}),
    ],
    "never_adopt": [Scene(_a_crash_with_the_head_in_flight, "overtook", {"batch_size": 1})],
}


def _breaches(scene: Scene, variant: str | None, database: Database, folder: Path) -> list[str]:
    # One slow retry, so that what may overtake the waiting event has all the time it needs.
    retry = {"base_delay": "300ms", "max_delay": "300ms", "max_attempts": 5}
    with open_harness(
        database, folder, hosting={"lanes": 1}, source={"slots": 1, "retry": retry, **scene.source}
    ) as harness:
        scene.play(harness, variant)
        return check(harness.history())


def test_every_variant_has_a_scene() -> None:
    assert SCENES.keys() == variants.BROKEN.keys()


@pytest.mark.parametrize(
    ("variant", "scene"),
    [pytest.param(name, scene, id=name) for name, scenes in SCENES.items() for scene in scenes],
)
class TestEachVariant:
    def test_the_relay_passes(self, variant: str, scene: Scene, database: Database, tmp_path: Path) -> None:
        assert _breaches(scene, None, database, tmp_path) == []

    def test_the_broken_relay_is_caught(
        self, variant: str, scene: Scene, database: Database, tmp_path: Path
    ) -> None:
        breaches = _breaches(scene, variant, database, tmp_path)

        assert [breach for breach in breaches if re.search(scene.breach, breach)]
