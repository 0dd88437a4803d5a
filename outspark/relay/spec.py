"""What a lane is told: a plain value that travels to wherever the lane is hosted."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Self

from outspark.settings import DestinationSettings, RelaySettings, RouteSettings, Settings, SourceSettings


@dataclass(frozen=True, slots=True)
class Share:
    """The part of one source that a lane works on; no slots where ordering is "none"."""

    name: str
    settings: SourceSettings
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedSpec:
    """What every kind of lane is told. `instance` names one run, so that two with the same id stay apart."""

    relay: RelaySettings
    instance: str
    lane: int
    shift: int = 0
    environ: Mapping[str, str] = field(default_factory=dict)

    def for_shift(self, shift: int, length: timedelta) -> Self:
        return replace(self, shift=shift, relay=self.relay.model_copy(update={"shift": length}))

    @property
    def channel(self) -> str:
        """Where the driver and the lanes of this run talk to each other."""
        return f"outspark_{self.instance}"

    @property
    def baton(self) -> tuple[int, int]:
        """The lock that a lane's shifts hand over: only its holder works."""
        return baton_class(self.instance), self.lane


def baton_class(instance: str) -> int:
    """The class of the locks that the lanes of one run hold."""
    unsigned = zlib.crc32(f"outspark/baton/{instance}".encode())
    return unsigned - (1 << 32) if unsigned >= 1 << 31 else unsigned


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSpec(HostedSpec):
    """A lane of a relay."""

    shares: tuple[Share, ...]
    destinations: Mapping[str, DestinationSettings]
    routes: tuple[RouteSettings, ...]


def share_out(settings: Settings, instance: str, environ: Mapping[str, str]) -> list[LaneSpec]:
    """Spread the slots of all sources over the lanes, as evenly as they go.

    Two sources of 3 slots on 2 lanes: lane 0 gets a0 a2 b1, lane 1 gets a1 b0 b2. Sources without slots go to
    every lane. Fewer slots than lanes leave the last lanes out.
    """
    lanes: list[dict[str, list[int]]] = [{} for _ in range(settings.relay.lanes)]
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
        LaneSpec(
            relay=settings.relay,
            instance=instance,
            lane=number,
            shares=tuple(Share(name, settings.sources[name], tuple(slots)) for name, slots in lane.items()),
            destinations=settings.destinations,
            routes=tuple(settings.routes),
            environ=environ,
        )
        for number, lane in enumerate(lanes)
        if lane
    ]


def databases(shares: Sequence[Share]) -> dict[str, list[Share]]:
    """Shares by the database they are in: a lane has one connection to each."""
    grouped: dict[str, list[Share]] = {}
    for share in shares:
        grouped.setdefault(share.settings.url.get_secret_value(), []).append(share)
    return grouped
