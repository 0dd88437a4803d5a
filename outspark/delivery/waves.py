"""Events on their way: which may go out together, what a failure holds back, how several destinations add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outspark.delivery.destination import Destination
from outspark.event import Event, Message
from outspark.outcome import DELIVERED, HELD, Dead, Held, Outcome, Retry


@dataclass(slots=True)
class Parcel:
    """An event on its way: a message for a destination, one parcel for each of several, or an outcome known before."""

    key: str | None
    destination: Destination | None = None
    message: Message | None = None
    outcome: Outcome | None = None
    copies: Sequence[Parcel] = ()


def assign(parcels: Sequence[Parcel], outcomes: Sequence[Outcome], failed: set[str]) -> None:
    """Later events of a key that failed are held; a publisher that keeps order has not sent them either."""
    for parcel, outcome in zip(parcels, outcomes, strict=True):
        if outcome is DELIVERED or parcel.key is None or passed(outcome):
            parcel.outcome = outcome
        else:
            parcel.outcome = HELD if parcel.key in failed else outcome
            failed.add(parcel.key)


def next_wave(waiting: Sequence[Parcel], failed: set[str]) -> tuple[list[Parcel], list[Parcel]]:
    """What may go out together: of one key, only events to one destination that keeps their order, else just one."""
    wave: list[Parcel] = []
    later: list[Parcel] = []
    ahead: dict[str, Destination | None] = {}
    for parcel in waiting:
        key = parcel.key
        if key is None:
            wave.append(parcel)
        elif key in failed:
            parcel.outcome = HELD
        elif key in ahead:
            first = ahead[key]
            if first is not None and first is _keeper(parcel):
                wave.append(parcel)
            else:
                later.append(parcel)
                ahead[key] = None
        elif parcel.destination is not None or parcel.copies:
            # What goes to several destinations goes alone: its key waits until all of them have answered.
            wave.append(parcel)
            ahead[key] = _keeper(parcel)
        elif not passed(parcel.outcome):
            failed.add(key)
    return wave, later


def _keeper(parcel: Parcel) -> Destination | None:
    """The destination, if it keeps order by itself."""
    destination = parcel.destination
    return destination if destination is not None and destination.publisher.keeps_order else None


def combine(parcel: Parcel) -> None:
    """An event fares as where it needs most: what may still pass comes before what never will."""
    worst = max(parcel.copies, key=_need)
    outcome = worst.outcome
    if isinstance(outcome, Retry | Dead) and worst.destination is not None:
        outcome = replace(outcome, error=f"{worst.destination.name}: {outcome.error}")
    parcel.outcome, parcel.destination = outcome, worst.destination


def _need(part: Parcel) -> int:
    match part.outcome:
        case Retry(counted=True):
            return 4
        case Retry():
            return 3
        case Held():
            return 2
        case Dead():
            return 1
        case _:
            return 0


def partial(events: Sequence[Event], parcels: Sequence[Parcel]) -> dict[str, list[str]]:
    some: dict[str, list[str]] = {}
    for event, parcel in zip(events, parcels, strict=True):
        if parcel.copies and not passed(parcel.outcome):
            taken = [
                part.destination.name for part in parcel.copies if part.destination and passed(part.outcome)
            ]
            if taken:
                some[event.id] = taken
    return some


def passed(outcome: Outcome | None) -> bool:
    return outcome is not None and not isinstance(outcome, Retry | Dead | Held)
