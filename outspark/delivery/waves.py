"""Routed events: which may go out together, which ones a failure holds back, how several destinations add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from outspark.delivery.destination import Destination
from outspark.event import Event, Message
from outspark.outcome import DELIVERED, HELD, Dead, Delivered, Held, Outcome, Retry, Skipped


@dataclass(slots=True)
class Routed:
    """A routed event: a message for one destination, one copy for each of several, or an outcome known already."""

    key: str | None
    destination: Destination | None = None
    message: Message | None = None
    outcome: Outcome | None = None
    copies: Sequence[Routed] = ()


def apply_outcomes(all_routed: Sequence[Routed], outcomes: Sequence[Outcome], failed: set[str]) -> None:
    """Hold the later events of a key that failed; a publisher that keeps order has not sent them either."""
    for routed, outcome in zip(all_routed, outcomes, strict=True):
        if outcome is DELIVERED or routed.key is None or is_success(outcome):
            routed.outcome = outcome
        else:
            routed.outcome = HELD if routed.key in failed else outcome
            failed.add(routed.key)


def next_wave(waiting: Sequence[Routed], failed: set[str]) -> tuple[list[Routed], list[Routed]]:
    """Split off what may go out together: of one key, only events to one destination that keeps order, or one event."""
    wave: list[Routed] = []
    later: list[Routed] = []
    ahead: dict[str, Destination | None] = {}
    for routed in waiting:
        key = routed.key
        if key is None:
            wave.append(routed)
        elif key in failed:
            routed.outcome = HELD
        elif key in ahead:
            first = ahead[key]
            if first is not None and first is _keeper(routed):
                wave.append(routed)
            else:
                later.append(routed)
                ahead[key] = None
        elif routed.destination is not None or routed.copies:
            # An event for several destinations goes out alone: its key waits until all of them have answered.
            wave.append(routed)
            ahead[key] = _keeper(routed)
        elif not is_success(routed.outcome):
            failed.add(key)
    return wave, later


def _keeper(routed: Routed) -> Destination | None:
    """The destination, if it keeps order by itself."""
    destination = routed.destination
    return destination if destination is not None and destination.publisher.keeps_order else None


def combine(routed: Routed) -> None:
    """The outcome of the destination that most needs another try: a retry wins over a permanent failure."""
    worst = max(routed.copies, key=_need)
    outcome = worst.outcome
    if isinstance(outcome, Retry | Dead) and worst.destination is not None:
        outcome = replace(outcome, error=f"{worst.destination.name}: {outcome.error}")
    routed.outcome, routed.destination = outcome, worst.destination


def _need(part: Routed) -> int:
    """How much a copy needs another try. Copies are combined once each of them has an outcome."""
    match part.outcome:
        case Retry(counted=True):
            return 4
        case Retry():
            return 3
        case Held() | None:
            return 2
        case Dead():
            return 1
        case Delivered() | Skipped():
            return 0
        case unknown:
            assert_never(unknown)


def partial(events: Sequence[Event], all_routed: Sequence[Routed]) -> dict[str, list[str]]:
    """Event id -> destinations that took it, for events that other destinations did not take."""
    some: dict[str, list[str]] = {}
    for event, routed in zip(events, all_routed, strict=True):
        if routed.copies and not is_success(routed.outcome):
            taken = [
                part.destination.name
                for part in routed.copies
                if part.destination and is_success(part.outcome)
            ]
            if taken:
                some[event.id] = taken
    return some


def is_success(outcome: Outcome | None) -> bool:
    """May later events of the key follow this one? A copy without an outcome was not sent."""
    match outcome:
        case Delivered() | Skipped():
            return True
        case Retry() | Dead() | Held() | None:
            return False
        case unknown:
            assert_never(unknown)
