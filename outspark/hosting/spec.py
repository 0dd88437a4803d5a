"""What every lane is told and what it reports: plain values that travel between the driver and the host of a lane."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

from outspark.config.settings import (
    HostingSettings,
    RelaySettings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSpec:
    """What every kind of lane is told. `instance` names one run, so that two with the same id stay apart."""

    hosting: HostingSettings
    relay: RelaySettings
    instance: str
    lane: int
    shift: int = 0
    environ: Mapping[str, str] = field(default_factory=dict)

    def for_shift(self, shift: int, length: timedelta) -> Self:
        return replace(self, shift=shift, hosting=self.hosting.model_copy(update={"shift": length}))

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


LEAD = 1.0
"""Seconds between the start of the next shift and the end of this one, for the next to get warm."""
LONGEST_OVERSTAY = 30.0


@dataclass(slots=True)
class ShiftReport:
    """What a shift brings home; plain JSON."""

    lane: int
    shift: int
    tally: dict[str, Any]
    breakers: dict[str, str]
    """Destinations that are down, and why."""
    problems: list[str]
    stopped: bool
    closed: list[dict[str, Any]] = field(default_factory=list)
    """Topics that take nothing (destination, topic) and types that are paused (source, type): reason and since."""
    causes: dict[str, Any] = field(default_factory=dict)
    """What went wrong, as in `outspark.observability.causes.Trouble`."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}
