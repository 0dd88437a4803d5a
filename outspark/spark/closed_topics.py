"""Topics that accept no messages and event types that are paused, as the lanes report them to the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from outspark.observability import metrics
from outspark.observability.metrics import Tally


class Item(NamedTuple):
    """A topic of a destination, or a type of a source's events."""

    kind: str
    of: str
    name: str

    def __str__(self) -> str:
        of = "destination" if self.kind == "topic" else "source"
        return f"{of} {self.of}, {self.kind} {self.name}"


@dataclass(slots=True)
class ClosedTopics:
    """Closed topics and paused types by lane, as of the end of its last shift. Safe to use from several threads."""

    _lanes: dict[int, dict[Item, tuple[float, str]]] = field(default_factory=dict)
    _with_gauge: set[Item] = field(default_factory=set)
    """Items whose gauge was set: it must be set back to 0 when the item is open again."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, lane: int, closed: Iterable[Mapping[str, Any]]) -> None:
        self._lanes[lane] = {_item(one): (one["since"], one["reason"]) for one in closed}

    def all(self) -> dict[Item, tuple[float, str]]:
        """Item -> since when it is closed for any lane, in seconds since 1970, and why."""
        every = [(item, found) for lane in list(self._lanes.values()) for item, found in lane.items()]
        return dict(sorted(every, key=lambda one: one[1], reverse=True))

    def problems(self) -> list[str]:
        return [f"{item}: {reason} (since {_time(since)})" for item, (since, reason) in self.all().items()]

    def stats(self) -> list[dict[str, Any]]:
        return [
            {"kind": item.kind, "of": item.of, "name": item.name, "since": _time(since), "reason": reason}
            for item, (since, reason) in self.all().items()
        ]

    def gauge(self, tally: Tally) -> None:
        # One caller at a time: a scrape with an older snapshot must not overwrite the gauges of a newer one.
        with self._lock:
            closed = self.all()
            self._with_gauge.update(closed)
            for item in self._with_gauge:
                _gauge(tally, item, float(item in closed))


def _gauge(tally: Tally, item: Item, value: float) -> None:
    if item.kind == "topic":
        tally.set(metrics.TOPIC_CLOSED, value, destination=item.of, topic=item.name)
    else:
        tally.set(metrics.TYPE_PAUSED, value, source=item.of, type=item.name)


def as_causes(closed: Iterable[Mapping[str, Any]], pending: Callable[[], int]) -> dict[str, dict[str, Any]]:
    """Causes for the log: one for all topics of a destination, and one for all types of a source."""
    found: dict[str, list[str]] = {}
    for one in closed:
        item = _item(one)
        what = "topics accept no events" if item.kind == "topic" else "types of events are paused"
        found.setdefault(f"{what}: {item.of}", []).append(f"{item.name}: {one['reason']}")
    waiting = pending()
    return {
        cause: {"text": f"{_first(texts)}; {waiting} events are pending", "count": len(texts), "over": False}
        for cause, texts in found.items()
    }


def _first(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]} (and {len(texts) - 1} more)"


def _item(one: Mapping[str, Any]) -> Item:
    if "topic" in one:
        return Item("topic", one["destination"], one["topic"])
    return Item("type", one["source"], one["type"])


def _time(since: float) -> str:
    return datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds")
