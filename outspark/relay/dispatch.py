"""From a batch of events to one outcome each: transform, route, publish in waves, hold what stands behind a failure."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outspark.errors import EventInvalid
from outspark.event import NO_HEADERS, Event, Message, wire_headers
from outspark.metrics import PUBLISHER_LATENCY, Tally
from outspark.outcome import DELIVERED, HELD, Dead, Held, Outcome, Retry, Skipped
from outspark.relay.breaker import Destination
from outspark.routing import Router, Transform
from outspark.telemetry import Tracing

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Parcel:
    """An event on its way: either a message for a destination, or an outcome that is known before it is sent."""

    key: str | None
    destination: Destination | None
    message: Message | None
    outcome: Outcome | None = None


@dataclass(slots=True)
class Dispatcher:
    """Publishes batches of one source. `ordered` says whether keys count."""

    router: Router
    destinations: Mapping[str, Destination]
    transform: Transform | None
    ordered: bool
    tally: Tally
    tracing: Tracing

    def dispatch(
        self, events: Sequence[Event], budget: float, before_wave: Callable[[], None]
    ) -> tuple[list[Outcome], list[Destination | None]]:
        """One outcome per event, and where each was to go. Events are in order; `budget` is in seconds.

        `before_wave` is called before anything is sent, and may raise to stop: then nothing more goes out.
        """
        parcels = [self._parcel(event) for event in events]
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
                before_wave()
                self._publish(wave, deadline, failed)
        return [parcel.outcome or HELD for parcel in parcels], [parcel.destination for parcel in parcels]

    def all_down(self) -> bool:
        return bool(self.destinations) and all(destination.open for destination in self.destinations.values())

    def _parcel(self, event: Event) -> Parcel:
        key = event.key if self.ordered else None
        try:
            sent = self.transform(event) if self.transform else event
            if sent is None:
                return Parcel(key, None, None, Skipped())
            route = self.router.route(sent.type, sent.key)
            headers = NO_HEADERS if sent.headers is None else wire_headers(sent.headers)
            message = Message(event.id, route.topic, sent.key, sent.payload, headers)
            return Parcel(key, self.destinations[route.destination], message)
        except EventInvalid as error:
            return Parcel(key, None, None, Dead(str(error)))
        except Exception as error:  # noqa: BLE001 - a transform's bug must cost its event an attempt, not the lane
            log.warning("transform failed", extra={"event": event.id, "error": str(error)})
            return Parcel(key, None, None, Retry(f"transform failed: {type(error).__name__}: {error}"))

    def _publish(self, wave: Sequence[Parcel], deadline: float, failed: set[str]) -> None:
        groups: dict[str, list[Parcel]] = {}
        for parcel in wave:
            if parcel.destination is not None:
                groups.setdefault(parcel.destination.name, []).append(parcel)
        for name, parcels in groups.items():
            messages = [parcel.message for parcel in parcels if parcel.message is not None]
            started = time.monotonic()
            with self.tracing.publish(name, messages):
                outcomes = self.destinations[name].publish(messages, max(deadline - started, 0.001))
            self.tally.observe(PUBLISHER_LATENCY, time.monotonic() - started, destination=name)
            if len(outcomes) != len(parcels):
                raise RuntimeError(
                    f"publisher {name} gave {len(outcomes)} outcomes for {len(parcels)} messages"
                )
            _assign(parcels, outcomes, failed)


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
            if first is not None and first is parcel.destination and first.publisher.keeps_order:
                wave.append(parcel)
            else:
                later.append(parcel)
                ahead[key] = None
        elif parcel.destination is None:
            if not _passed(parcel.outcome):
                failed.add(key)
        else:
            wave.append(parcel)
            ahead[key] = parcel.destination
    return wave, later


def _passed(outcome: Outcome | None) -> bool:
    return outcome is not None and not isinstance(outcome, Retry | Dead | Held)
