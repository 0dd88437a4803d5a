"""From a batch of events to one outcome each: transform, route, publish in waves, hold the events behind a failure."""

from __future__ import annotations

import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from outspark import redaction
from outspark.delivery import waves
from outspark.delivery.destination import Block, Breaker, Destination
from outspark.delivery.envelopes import Envelope
from outspark.delivery.permit import Permit
from outspark.delivery.routing import Router, Transform
from outspark.delivery.waves import Routed
from outspark.errors import EventInvalid
from outspark.event import Event, Message
from outspark.headers import NO_HEADERS, text_headers, wire_headers
from outspark.observability.causes import Trouble
from outspark.observability.metrics import PUBLISHER_LATENCY, Tally
from outspark.observability.otel import Tracing
from outspark.outcome import DELIVERED, HELD, Dead, Outcome, Retry, Skipped, all_delivered

NOWHERE: Mapping[str, Collection[str]] = {}


@dataclass(slots=True)
class Dispatched:
    """What became of a batch: for each event its outcome, and the destination that it was for or failed at."""

    outcomes: list[Outcome]
    destinations: list[Destination | None]
    partial: dict[str, list[str]]
    """Event id -> destinations that took it now, for events that other destinations did not take."""


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
    guarded: bool = True
    """Do events wait for a topic that is missing, forbidden or full? Otherwise each is tried."""
    paused: Mapping[str, Breaker] = field(default_factory=dict)
    """Types of events that are paused, each until its probe is due."""
    trouble: Trouble = field(default_factory=Trouble)
    """A transform that fails does so for many events: the driver tells it once for all of them."""

    def dispatch(
        self,
        events: Sequence[Event],
        budget: float,
        permit: Permit,
        been: Mapping[str, Collection[str]] = NOWHERE,
    ) -> Dispatched:
        """Events are in order; `budget` is in seconds; `been` says which destinations have which events already.

        The permit is checked each time before a destination gets messages, since each may take all its time.
        """
        deadline = time.monotonic() + budget
        straight = None if been else self._straight(events)
        if straight is not None:
            destination, messages = straight
            outcomes = self._send(destination, messages, deadline, permit)
            if not all_delivered(outcomes):
                outcomes = _hold_behind_failures(destination, messages, outcomes)
            return Dispatched(outcomes, [destination] * len(events), {})
        all_routed = [self._route_event(event, been, alone=len(events) == 1) for event in events]
        failed: set[str] = set()
        waiting: list[Routed] = all_routed
        while waiting:
            if time.monotonic() >= deadline:
                for routed in waiting:
                    routed.outcome = HELD
                break
            wave, waiting = waves.next_wave(waiting, failed)
            if wave:
                self._publish(wave, deadline, failed, permit)
        return Dispatched(
            [routed.outcome or HELD for routed in all_routed],
            [routed.destination for routed in all_routed],
            waves.partial(events, all_routed) if self.router.fans_out else {},
        )

    def all_down(self) -> bool:
        return bool(self.destinations) and all(destination.open for destination in self.destinations.values())

    def closed(self) -> set[Block]:
        """The topics and types that are closed, whether anything is known to wait for them or not."""
        topics = {Block(d.name, topic) for d in self.destinations.values() for topic in d.topics}
        return topics | {Block("", type=name) for name in self.paused}

    def breaker(self, block: Block) -> Breaker | None:
        """The open breaker of a topic or a type."""
        if block.type is not None:
            return self.paused.get(block.type)
        return self.destinations[block.destination].topics.get(block.topic or "")

    def close(self, block: Block) -> None:
        """Close the breaker of a topic: it has answered, though not with an acknowledgement."""
        self.destinations[block.destination].topics.pop(block.topic or "", None)

    def is_open(self, block: Block) -> bool:
        if block.topic is None and block.type is None:
            return self.destinations[block.destination].open
        return self.breaker(block) is not None

    def next_probe(self, block: Block) -> float | None:
        """When an event is to be sent to find out whether the topic or the type works again."""
        breaker = self.breaker(block)
        if breaker is None or (block.destination and self.destinations[block.destination].open):
            return None
        return breaker.probe_at

    def _straight(self, events: Sequence[Event]) -> tuple[Destination, list[Message]] | None:
        """The messages of a batch that goes unchanged to one destination that keeps order, as most batches do.

        None where there is more to decide. This way makes a fraction of the objects of the other, and saves a
        microsecond an event.
        """
        if self.transform is not None or not events or self.paused:
            return None
        route_of, ordered, messages = self.router.route, self.ordered, []
        try:
            names = route_of(events[0].type, events[0].key, events[0].cluster, events[0].topic).destinations
            if len(names) != 1 or names[0] in self.envelopes:
                return None
            publisher = self.destinations[names[0]].publisher
            if not publisher.keeps_order:
                return None
            for event in events:
                route = route_of(event.type, event.key, event.cluster, event.topic)
                if route.destinations != names or (event.stored and not publisher.keeps_headers):
                    return None
                headers = NO_HEADERS if event.headers is None else wire_headers(event.headers)
                key = event.order_key if ordered else None
                id = event.message_id or event.id
                messages.append(
                    Message(id, route.topic, event.key, event.payload, headers, key, event.stored)
                )
        except EventInvalid:
            return None
        return self.destinations[names[0]], messages

    def _route_event(self, event: Event, been: Mapping[str, Collection[str]], alone: bool) -> Routed:
        """`alone`: this event is all of its batch, as one that probes is."""
        key = event.order_key if self.ordered else None
        if (pause := self.paused.get(event.type)) is not None and not (alone and pause.is_due()):
            return Routed(key, outcome=Retry(pause.reason, counted=False))
        try:
            sent = self.transform(event) if self.transform else event
            if sent is None:
                return Routed(key, outcome=Skipped())
            route = self.router.route(sent.type, sent.key, sent.cluster, sent.topic)
            headers = NO_HEADERS if sent.headers is None else wire_headers(sent.headers)
            id = sent.message_id or event.id
            message = Message(id, route.topic, sent.key, sent.payload, headers, key, sent.stored)
            if len(route.destinations) == 1:
                [name] = route.destinations
                return Routed(key, self.destinations[name], self._wrap(name, sent, message))
            missing = [name for name in route.destinations if name not in been.get(event.id, ())]
            copies = [
                Routed(None, self.destinations[name], self._wrap(name, sent, message)) for name in missing
            ]
            return Routed(key, copies=copies, outcome=None if copies else DELIVERED)
        except EventInvalid as error:
            return Routed(key, outcome=Dead(str(error)))
        except Exception as error:  # noqa: BLE001 - a transform's bug must cost its event an attempt, not the lane
            reason = f"{type(error).__name__}: {redaction.of(error)}"
            told = f"{reason} (in {_place(error)}, event {event.id})"
            self.trouble.raise_(f"transform failed: {self.router.source}", told)
            return Routed(key, outcome=Retry(f"transform failed: {reason}"))

    def _wrap(self, name: str, event: Event, message: Message) -> Message:
        if message.stored and not self.destinations[name].publisher.keeps_headers:
            message = replace(message, headers=text_headers(message.stored, message.headers), stored=())
        envelope = self.envelopes.get(name)
        return message if envelope is None else envelope(event, message)

    def _publish(
        self,
        wave: Sequence[Routed],
        deadline: float,
        failed: set[str],
        permit: Permit,
    ) -> None:
        groups: dict[str, list[Routed]] = {}
        for routed in wave:
            for part in routed.copies or (routed,):
                if part.destination is not None:
                    groups.setdefault(part.destination.name, []).append(part)
        for name, all_routed in groups.items():
            messages = [routed.message for routed in all_routed if routed.message is not None]
            outcomes = self._send(self.destinations[name], messages, deadline, permit)
            waves.apply_outcomes(all_routed, outcomes, failed)
        for routed in wave:
            if routed.copies:
                waves.combine(routed)
                if routed.key is not None and not waves.is_success(routed.outcome):
                    failed.add(routed.key)

    def _send(
        self,
        destination: Destination,
        messages: Sequence[Message],
        deadline: float,
        permit: Permit,
    ) -> list[Outcome]:
        permit.check()
        name, started = destination.name, time.monotonic()
        with self.tracing.publish(name, messages):
            outcomes = destination.publish(messages, max(deadline - started, 0.001), guarded=self.guarded)
        self.tally.observe(PUBLISHER_LATENCY, time.monotonic() - started, destination=name)
        if len(outcomes) != len(messages):
            raise RuntimeError(f"publisher {name} gave {len(outcomes)} outcomes for {len(messages)} messages")
        return outcomes


def _hold_behind_failures(
    destination: Destination, messages: Sequence[Message], outcomes: Sequence[Outcome]
) -> list[Outcome]:
    all_routed = [Routed(message.order_key, destination, message) for message in messages]
    waves.apply_outcomes(all_routed, outcomes, set())
    return [routed.outcome or HELD for routed in all_routed]


def _place(error: Exception) -> str:
    """`shop.py:12 enrich`: the last line of the file that we called, whatever that called in turn."""
    frames = traceback.extract_tb(error.__traceback__)
    called = frames[min(1, len(frames) - 1)].filename
    frame = next(frame for frame in reversed(frames) if frame.filename == called)
    return f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
