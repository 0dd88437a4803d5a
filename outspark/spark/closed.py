"""What lanes found closed: topics that take nothing and types of events that are paused, as the driver tells of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from outspark import metrics
from outspark.metrics import Tally


class Thing(NamedTuple):
    """A topic of a destination, or a type of a source's events."""

    kind: str
    of: str
    name: str

    def __str__(self) -> str:
        of = "destination" if self.kind == "topic" else "source"
        return f"{of} {self.of}, {self.kind} {self.name}"


@dataclass(slots=True)
class Closed:
    """By lane, as of the end of its last shift."""

    _lanes: dict[int, dict[Thing, tuple[float, str]]] = field(default_factory=dict)
    _told: set[Thing] = field(default_factory=set)
    """What has a gauge, which goes back to 0 when it is open again."""

    def take(self, lane: int, closed: Iterable[Mapping[str, Any]]) -> None:
        self._lanes[lane] = {_thing(one): (one["since"], one["reason"]) for one in closed}

    def all(self) -> dict[Thing, tuple[float, str]]:
        """Since when each is closed for any lane, in seconds since 1970, and why."""
        every = [(thing, told) for lane in list(self._lanes.values()) for thing, told in lane.items()]
        return dict(sorted(every, key=lambda one: one[1], reverse=True))

    def problems(self) -> list[str]:
        return [f"{thing}: {reason} (since {_time(since)})" for thing, (since, reason) in self.all().items()]

    def stats(self) -> list[dict[str, Any]]:
        return [
            {"kind": thing.kind, "of": thing.of, "name": thing.name, "since": _time(since), "reason": reason}
            for thing, (since, reason) in self.all().items()
        ]

    def gauge(self, tally: Tally) -> None:
        closed = self.all()
        self._told.update(closed)
        for thing in self._told:
            if thing.kind == "topic":
                tally.set(
                    metrics.TOPIC_CLOSED, float(thing in closed), destination=thing.of, topic=thing.name
                )
            else:
                tally.set(metrics.TYPE_PAUSED, float(thing in closed), source=thing.of, type=thing.name)


def _thing(one: Mapping[str, Any]) -> Thing:
    if "topic" in one:
        return Thing("topic", one["destination"], one["topic"])
    return Thing("type", one["source"], one["type"])


def _time(since: float) -> str:
    return datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds")
