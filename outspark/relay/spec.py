"""What a lane of a relay is told, and how slots are spread over lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outspark.config.settings import (
    DestinationSettings,
    RouteSettings,
    Settings,
    SourceSettings,
)
from outspark.hosting.spec import LaneSpec


@dataclass(frozen=True, slots=True)
class SourceSlots:
    """The part of one source that a lane works on; no slots where ordering is "none"."""

    name: str
    settings: SourceSettings
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLaneSpec(LaneSpec):
    """A lane of a relay."""

    sources: tuple[SourceSlots, ...]
    destinations: Mapping[str, DestinationSettings]
    routes: tuple[RouteSettings, ...]


def assign_slots(settings: Settings, instance: str, environ: Mapping[str, str]) -> list[RelayLaneSpec]:
    """Spread the slots of all sources over the lanes, as evenly as they go.

    Two sources of 3 slots on 2 lanes: lane 0 gets a0 a2 b1, lane 1 gets a1 b0 b2. Sources without slots go to
    every lane. Fewer slots than lanes leave the last lanes out.
    """
    lanes: list[dict[str, list[int]]] = [{} for _ in range(settings.hosting.lanes)]
    turn = 0
    for name, source in settings.sources.items():
        if source.ordering == "none":
            for lane in lanes:
                lane[name] = []
            continue
        for slot in range(source.slots):
            lanes[turn % len(lanes)].setdefault(name, []).append(slot)
            turn += 1
    return [
        RelayLaneSpec(
            hosting=settings.hosting,
            relay=settings.relay,
            instance=instance,
            lane=number,
            sources=tuple(
                SourceSlots(name, settings.sources[name], tuple(slots)) for name, slots in lane.items()
            ),
            destinations=settings.destinations,
            routes=tuple(settings.routes),
            environ=environ,
        )
        for number, lane in enumerate(lanes)
        if lane
    ]


def databases(sources: Sequence[SourceSlots]) -> dict[str, list[SourceSlots]]:
    """Sources by the database they are in: a lane has one connection to each."""
    grouped: dict[str, list[SourceSlots]] = {}
    for assigned in sources:
        grouped.setdefault(assigned.settings.url.get_secret_value(), []).append(assigned)
    return grouped
