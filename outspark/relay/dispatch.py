"""From a batch of events to one outcome each: transform, route, publish in waves, hold what stands behind a failure."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from outspark.envelopes import Envelope
from outspark.errors import EventInvalid
from outspark.event import NO_HEADERS, Event, Message, wire_headers
from outspark.metrics import PUBLISHER_LATENCY, Tally
from outspark.outcome import DELIVERED, HELD, Dead, Held, Outcome, Retry, Skipped
from outspark.relay.breaker import Destination
from outspark.routing import Router, Transform
from outspark.telemetry import Tracing

log = logging.getLogger(__name__)


NOWHERE: Mapping[str, Collection[str]] = {}


@dataclass(slots=True)
class Parcel:
    """An event on its way: a message for a destination, one parcel for each of several, or an outcome known before."""

    key: str | None
    destination: Destination | None = None
    message: Message | None = None
    outcome: Outcome | None = None
    copies: Sequence[Parcel] = ()


@dataclass(slots=True)
class Dispatched:
    """What became of a batch: for each event its outcome, and where it was to go or failed."""

    outcomes: list[Outcome]
    destinations: list[Destination | None]
    partial: dict[str, list[str]]
    """Event id -> destinations that took it now, for events that are not through everywhere."""


@dataclass(slots=True)
class Dispatcher:
    """Publishes batches of one source. `ordered` says whether keys count."""

    router: Router
    destinations: Mapping[str, Destination]
    transform: Transform | None
    ordered: bool
    tally: Tally
    tracing: Tracing
    envelopes: Mapping[str, Envelope] = field(default_factory=dict)
    """Of the destinations that wrap their messages."""

    def dispatch(
        self,
        events: Sequence[Event],
        budget: float,
        before_publish: Callable[[], None],
        been: Mapping[str, Collection[str]] = NOWHERE,
    ) -> Dispatched:
        """Events are in order; `budget` is in seconds; `been` says which destinations have which events already.

        `before_publish` is called each time before a destination gets anything, since each may take all its time, and
        may raise to stop: then nothing more goes out.
        """
        parcels = [self._parcel(event, been) for event in events]
        deadline = time.monotonic() + budget
        failed: set[str] = set()
        waiting: list[Parcel] = parcels
        while waiting:
            if time.monotonic() >= deadline:
                for parcel in waiting:
                    parcel.outcome = HELD
                break
            wave, waiting = _next_wave(waiting, failed)
            if wave:
                self._publish(wave, deadline, failed, before_publish)
        return Dispatched(
            [parcel.outcome or HELD for parcel in parcels],
            [parcel.destination for parcel in parcels],
            _partial(events, parcels) if self.router.fans_out else {},
        )

    def all_down(self) -> bool:
        return bool(self.destinations) and all(destination.open for destination in self.destinations.values())

    def _parcel(self, event: Event, been: Mapping[str, Collection[str]]) -> Parcel:
        key = event.order_key if self.ordered else None
        try:
            sent = self.transform(event) if self.transform else event
            if sent is None:
                return Parcel(key, outcome=Skipped())
            route = self.router.route(sent.type, sent.key, sent.cluster)
            headers = NO_HEADERS if sent.headers is None else wire_headers(sent.headers)
            message = Message(sent.message_id or event.id, route.topic, sent.key, sent.payload, headers, key)
            if len(route.destinations) == 1:
                [name] = route.destinations
                return Parcel(key, self.destinations[name], self._wrap(name, sent, message))
            missing = [name for name in route.destinations if name not in been.get(event.id, ())]
            copies = [
                Parcel(None, self.destinations[name], self._wrap(name, sent, message)) for name in missing
            ]
            return Parcel(key, copies=copies, outcome=None if copies else DELIVERED)
        except EventInvalid as error:
            return Parcel(key, outcome=Dead(str(error)))
        except Exception as error:  # noqa: BLE001 - a transform's bug must cost its event an attempt, not the lane
            log.warning("transform failed", extra={"event": event.id, "error": str(error)})
            return Parcel(key, outcome=Retry(f"transform failed: {type(error).__name__}: {error}"))

    def _wrap(self, name: str, event: Event, message: Message) -> Message:
        envelope = self.envelopes.get(name)
        return message if envelope is None else envelope(event, message)

    def _publish(
        self,
        wave: Sequence[Parcel],
        deadline: float,
        failed: set[str],
        before_publish: Callable[[], None],
    ) -> None:
        groups: dict[str, list[Parcel]] = {}
        for parcel in wave:
            for part in parcel.copies or (parcel,):
                if part.destination is not None:
                    groups.setdefault(part.destination.name, []).append(part)
        for name, parcels in groups.items():
            messages = [parcel.message for parcel in parcels if parcel.message is not None]
            before_publish()
            started = time.monotonic()
            with self.tracing.publish(name, messages):
                outcomes = self.destinations[name].publish(messages, max(deadline - started, 0.001))
            self.tally.observe(PUBLISHER_LATENCY, time.monotonic() - started, destination=name)
            if len(outcomes) != len(parcels):
                raise RuntimeError(
                    f"publisher {name} gave {len(outcomes)} outcomes for {len(parcels)} messages"
                )
            _assign(parcels, outcomes, failed)
        for parcel in wave:
            if parcel.copies:
                _combine(parcel)
                if parcel.key is not None and not _passed(parcel.outcome):
                    failed.add(parcel.key)


def _assign(parcels: Sequence[Parcel], outcomes: Sequence[Outcome], failed: set[str]) -> None:
    """Later events of a key that failed are held; a publisher that keeps order has not sent them either."""
    for parcel, outcome in zip(parcels, outcomes, strict=True):
        if outcome is DELIVERED or parcel.key is None or _passed(outcome):
            parcel.outcome = outcome
        else:
            parcel.outcome = HELD if parcel.key in failed else outcome
            failed.add(parcel.key)


def _next_wave(waiting: Sequence[Parcel], failed: set[str]) -> tuple[list[Parcel], list[Parcel]]:
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
        elif not _passed(parcel.outcome):
            failed.add(key)
    return wave, later


def _keeper(parcel: Parcel) -> Destination | None:
    """The destination, if it keeps order by itself."""
    destination = parcel.destination
    return destination if destination is not None and destination.publisher.keeps_order else None


def _combine(parcel: Parcel) -> None:
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


def _partial(events: Sequence[Event], parcels: Sequence[Parcel]) -> dict[str, list[str]]:
    partial: dict[str, list[str]] = {}
    for event, parcel in zip(events, parcels, strict=True):
        if parcel.copies and not _passed(parcel.outcome):
            taken = [
                part.destination.name for part in parcel.copies if part.destination and _passed(part.outcome)
            ]
            if taken:
                partial[event.id] = taken
    return partial


def _passed(outcome: Outcome | None) -> bool:
    return outcome is not None and not isinstance(outcome, Retry | Dead | Held)
