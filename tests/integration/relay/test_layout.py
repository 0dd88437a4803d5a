"""A relay that ended in mid-batch is followed by one with other settings: nothing is overtaken all the same."""

from __future__ import annotations

import pytest

from outspark.relay.handover import HandoverNote
from tests.integration.relay.harness import Harness
from tests.integration.relay.test_ownership import ELSEWHERE, OwnerOfSlots

KEYS = [f"k{number}" for number in range(16)]


def owner(harness: Harness, **more: object) -> OwnerOfSlots:
    """An owner of all the slots there are by the settings of the place."""
    count = harness.settings().sources["outbox"].slots
    one = OwnerOfSlots(harness, count=count, **more)  # type: ignore[arg-type]
    one.slots.wanted = tuple(range(count))
    return one


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"slots": 4, "lease": "row"}, {"slots": 8, "lease": "row"}),
        ({"slots": 4, "lease": "row"}, {"slots": 8, "lease": "slot"}),
        ({"slots": 8, "lease": "row"}, {"slots": 3, "lease": "row"}),
        ({"slots": 4, "lease": "row"}, {"slots": 4, "lease": "slot"}),
    ],
    ids=["4 to 8", "4 to 8, row to slot", "8 to 3", "row to slot"],
)
def test_what_was_in_flight_goes_first(
    harness: Harness, before: dict[str, object], after: dict[str, object]
) -> None:
    harness.source |= before
    for key in KEYS:
        harness.enqueue(f"{key} 1", f"{key} 2", key=key)
    first = owner(harness)
    first.take()
    assert len(first.claim().events) == 2 * len(KEYS)
    first.vanish()
    for key in KEYS:
        harness.enqueue(f"{key} 3", key=key)

    harness.source |= after
    harness.work_to_the_end()

    for key in KEYS:
        names = [name for name in harness.broker.delivered() if name.split()[0] == key]
        assert names == [f"{key} 1", f"{key} 2", f"{key} 3"]
    assert {attempts for name, (_, attempts) in harness.states().items() if name[-1] in "12"} == {1}


def test_every_slot_waits_for_one_that_may_still_be_publishing(harness: Harness) -> None:
    harness.source["slots"] = 2
    first = owner(harness, owner=ELSEWHERE)
    first.take()
    first.vanish()

    harness.source["slots"] = 8
    second = owner(harness)
    assert not second.take()
    assert len(second.slots.epochs) == 8
    assert second.ownership.taking_over()


def test_after_a_clean_end_another_number_of_slots_costs_no_wait(harness: Harness) -> None:
    harness.source["slots"] = 8
    first = owner(harness)
    first.take()
    first.ownership.leave()
    first.vanish()

    harness.source["slots"] = 2
    second = owner(harness)
    assert second.take()
    assert not second.ownership.taking_over()


@pytest.mark.parametrize("all_clean", [True, False])
def test_a_note_counts_only_if_every_slot_was_left_in_good_order(harness: Harness, all_clean: bool) -> None:
    first = owner(harness)
    first.take()
    first.ownership.leave(HandoverNote(instance="one", slots=[0, 1]))
    first.vanish()
    harness.conn.execute("UPDATE outspark_slots SET clean = %s WHERE slot = 1", [all_clean])

    second = owner(harness)
    second.take()
    assert (second.ownership.inherited is not None) == all_clean
