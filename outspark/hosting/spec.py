"""The spec of a lane and the report of a shift: plain values that the driver and the lane's host exchange."""

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
    """The part of a spec that all kinds of lanes share. `instance` names one run, so that equal ids stay apart."""

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
        """The NOTIFY channel of the driver and the lanes of this run."""
        return f"outspark_{self.instance}"

    @property
    def baton(self) -> tuple[int, int]:
        """The advisory lock that the shifts of a lane hand over: only its holder works."""
        return baton_class(self.instance), self.lane


def baton_class(instance: str) -> int:
    """First key of the batons of one run: a signed 32-bit number, as PostgreSQL's two-key locks take it."""
    unsigned = zlib.crc32(f"outspark/baton/{instance}".encode())
    return unsigned - (1 << 32) if unsigned >= 1 << 31 else unsigned


LEAD = 1.0
"""Seconds between the start of the next shift and the end of this one, for the next to warm up."""
LONGEST_OVERSTAY = 30.0
"""Seconds for which a shift without a relief may continue past its end; one more shift length if that is longer."""


@dataclass(slots=True)
class ShiftReport:
    """The report of one shift; plain JSON."""

    lane: int
    shift: int
    tally: dict[str, Any]
    breakers: dict[str, str]
    """Destinations that are down, and why."""
    problems: list[str]
    stopped: bool
    closed: list[dict[str, Any]] = field(default_factory=list)
    """Topics that accept nothing (destination, topic) and paused types (source, type), each with reason and since."""
    causes: dict[str, Any] = field(default_factory=dict)
    """Problems of the shift, in the form of `outspark.observability.causes.Trouble`."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}
