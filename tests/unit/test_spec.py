"""How the slots of all sources are shared out among the lanes."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from outspark.config.settings import Settings
from outspark.relay.spec import RelayLaneSpec, assign_slots, databases


def settings(lanes: int, **sources: dict[str, Any]) -> Settings:
    return Settings.model_validate(
        {
            "hosting": {"lanes": lanes},
            "sources": {
                name: {"url": "postgresql://h/d", "table": name, **source} for name, source in sources.items()
            },
            "destinations": {"out": {"type": "null"}},
        }
    )


def sources(specs: list[RelayLaneSpec]) -> list[dict[str, tuple[int, ...]]]:
    return [{assigned.name: assigned.slots for assigned in spec.sources} for spec in specs]


def test_slots_go_round() -> None:
    assert sources(assign_slots(settings(2, a={"slots": 3}, b={"slots": 3}), "i", {})) == [
        {"a": (0, 2), "b": (1,)},
        {"a": (1,), "b": (0, 2)},
    ]


def test_lanes_without_slots_are_left_out() -> None:
    specs = assign_slots(settings(4, a={"slots": 2}), "i", {})

    assert [spec.lane for spec in specs] == [0, 1]


def test_a_source_without_order_goes_to_every_lane() -> None:
    assert sources(assign_slots(settings(2, a={"ordering": "none"}, b={"slots": 1}), "i", {})) == [
        {"a": (), "b": (0,)},
        {"a": ()},
    ]


@pytest.mark.parametrize("lanes", [1, 3, 8])
@pytest.mark.parametrize("slots", [1, 7, 256])
def test_every_slot_has_exactly_one_lane(lanes: int, slots: int) -> None:
    specs = assign_slots(settings(lanes, a={"slots": slots}), "i", {})

    assert sorted(slot for spec in specs for assigned in spec.sources for slot in assigned.slots) == list(
        range(slots)
    )


def test_a_spec_travels() -> None:
    (spec,) = assign_slots(settings(1, a={}), "i", {"OTEL_SERVICE_NAME": "x"})

    assert pickle.loads(pickle.dumps(spec)) == spec
    later = spec.for_shift(7, timedelta(seconds=2))
    assert (later.shift, later.hosting.shift) == (7, timedelta(seconds=2))


def test_instances_and_lanes_have_batons_and_instances_have_channels_of_their_own() -> None:
    one, two = assign_slots(settings(2, a={}), "one", {})
    (other, _) = assign_slots(settings(2, a={}), "two", {})

    assert len({one.baton, two.baton, other.baton}) == 3
    assert one.for_shift(3, one.hosting.shift).baton == one.baton
    assert one.channel == two.channel != other.channel
    assert all(-(2**31) <= number < 2**31 for number in one.baton + other.baton)


def test_a_lane_has_one_connection_to_each_database() -> None:
    (spec,) = assign_slots(settings(1, a={}, b={"table": "other"}, c={"url": "postgresql://h/e"}), "i", {})

    grouped = databases(spec.sources)

    assert {url: [assigned.name for assigned in group] for url, group in grouped.items()} == {
        "postgresql://h/d": ["a", "b"],
        "postgresql://h/e": ["c"],
    }
