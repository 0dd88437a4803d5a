"""A destination as a lane uses it: a publisher behind circuit breakers, one for itself and one for each topic.

A destination that is down, or a topic that is missing, forbidden or full, burns no attempts: its events wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from outspark.brokers.publisher import Publisher
from outspark.errors import DestinationError
from outspark.event import Message
from outspark.outcome import (
    DELIVERED,
    HELD,
    KIND_OF_FAULT,
    Delivered,
    Outcome,
    Retry,
    TopicFault,
    all_delivered,
)

log = logging.getLogger(__name__)

FIRST_PROBE, LONGEST_PROBE = 0.2, 5.0
IDLE = 10.0
"""Seconds after which a breaker is dropped that is due for a probe and that no event waits for any more."""
CHECK_TIMEOUT = 1.0
CHECK_SHARE = 20.0
"""The pause after a probe is at least this many times as long as the probe: the lane waits while it probes."""


@dataclass(slots=True)
class Breaker:
    """An open breaker of one topic or one type of events: one event at a time goes out as a probe, ever more rarely."""

    reason: str
    since: float = field(default_factory=time.time)
    pause: float = FIRST_PROBE
    """Seconds from the next failure to the probe after it."""
    fault: TopicFault | None = None
    """What is wrong with the topic."""
    longest: float = LONGEST_PROBE
    probe_at: float = 0.0
    wanted_at: float = 0.0
    """When an event was last known to wait for it; `probe_at` and this are on the monotonic clock."""

    def postpone(self, reason: str) -> None:
        self.reason = reason
        self.probe_at = time.monotonic() + self.pause
        self.pause = min(self.pause * 2, self.longest)

    def next_probe(self) -> float:
        return self.probe_at

    def is_due(self) -> bool:
        return time.monotonic() >= self.probe_at

    def is_idle(self) -> bool:
        return time.monotonic() >= max(self.probe_at, self.wanted_at) + IDLE

    def is_patient(self) -> bool:
        """Has it been probed so often that its pauses grow no more?"""
        return self.pause >= self.longest


@dataclass(slots=True)
class Destination:
    """Closed: messages go out. Open: no message goes out until a probe, made ever more rarely, succeeds."""

    name: str
    publisher: Publisher
    timeout: float
    open: bool = False
    reason: str = ""
    since: float = 0.0
    """When it went down, in seconds since 1970."""
    pause: float = FIRST_PROBE
    """Seconds from the next failure to the probe after it."""
    topics: dict[str, Breaker] = field(default_factory=dict)
    """The topics that take no messages, while the destination itself is healthy."""
    opened: int = 0
    """How often it went down since that was last reported."""
    _probe_at: float = 0.0

    def publish(self, messages: Sequence[Message], timeout: float, *, guarded: bool = True) -> list[Outcome]:
        """One outcome per message, whatever the publisher does.

        Without `guarded`, each message to a topic that is missing or forbidden is tried, since it may die of that; one
        that is full has its breaker all the same.
        """
        if self.open:
            return [Retry(f"{self.name} is down: {self.reason}", counted=False)] * len(messages)
        if self.topics:
            return self._publish_around(messages, timeout, guarded)
        return self._watch(messages, self._publish(messages, timeout), guarded)

    def probe(self) -> bool:
        """True when an open breaker could be closed."""
        if not self.open or time.monotonic() < self._probe_at:
            return False
        started = time.monotonic()
        try:
            self.publisher.check(CHECK_TIMEOUT)
        except Exception as error:  # noqa: BLE001 - whatever fails in a probe, the destination is not healthy yet
            self.reason = str(error)
            self._postpone(CHECK_SHARE * (time.monotonic() - started))
            return False
        log.debug("destination is back", extra={"destination": self.name})
        self.open = False
        return True

    def drop_idle(self) -> None:
        for topic in [topic for topic, one in self.topics.items() if one.is_idle()]:
            del self.topics[topic]

    def presume_down(self, reason: str, probe_in: float, pause: float) -> None:
        """Another lane found it down: the probes go on here in their rhythm, however short the shifts are."""
        if not self.open:
            self.since = time.time()
        self.open, self.reason, self.pause = True, reason, pause
        self._probe_at = time.monotonic() + probe_in

    def next_probe(self) -> float | None:
        return self._probe_at if self.open else None

    def _publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        try:
            outcomes = self.publisher.publish(messages, min(timeout, self.timeout))
        except DestinationError as error:
            outcomes = [Retry(str(error), counted=False)] * len(messages)
        except Exception as error:
            log.exception(
                "publisher failed", extra={"destination": self.name, "events": [m.id for m in messages[:5]]}
            )
            outcomes = [Retry(f"{type(error).__name__}: {error}")] * len(messages)
        if all_delivered(outcomes):
            self.pause = FIRST_PROBE
            return outcomes
        failure = next((o for o in outcomes if isinstance(o, Retry) and not o.counted and not o.fault), None)
        if failure is not None:
            self._open(failure.error)
        else:
            self.pause = FIRST_PROBE
        return outcomes

    def _publish_around(self, messages: Sequence[Message], timeout: float, guarded: bool) -> list[Outcome]:
        """Leave out messages to topics that take none; when the probe of a topic is due, one message goes there."""
        outcomes: list[Outcome] = [DELIVERED] * len(messages)
        going: list[int] = []
        probed: set[str] = set()
        left_out: set[str | None] = set()
        for index, message in enumerate(messages):
            breaker = self.topics.get(message.topic)
            if message.order_key is not None and message.order_key in left_out:
                outcomes[index] = HELD
            elif breaker is None or not _has_breaker(breaker.fault, guarded):
                going.append(index)
            elif breaker.is_due() and message.topic not in probed:
                probed.add(message.topic)
                going.append(index)
            else:
                left_out.add(message.order_key)
                outcomes[index] = Retry(breaker.reason, counted=False, topic=message.topic)
        if going:
            sent = [messages[index] for index in going]
            answers = self._watch(sent, self._publish(sent, timeout), guarded)
            for index, outcome in zip(going, answers, strict=True):
                outcomes[index] = outcome
        for topic in probed & self.topics.keys():
            # The probe failed in a way that says nothing about its topic.
            if self.topics[topic].is_due():
                self.topics[topic].postpone(self.topics[topic].reason)
        return outcomes

    def _watch(self, messages: Sequence[Message], outcomes: list[Outcome], guarded: bool) -> list[Outcome]:
        """Open and close the breakers of topics by the outcomes of their messages."""
        if self.topics:
            self._close_topics(messages, outcomes)
        if all_delivered(outcomes):
            return outcomes
        blamed = [
            index
            for index, outcome in enumerate(outcomes)
            if isinstance(outcome, Retry) and outcome.fault and _has_breaker(outcome.fault, guarded)
        ]
        if not blamed:
            return outcomes
        # The last message that each topic took: one that a topic refused before that was refused for its own sake.
        took = {m.topic: i for i, m in enumerate(messages) if isinstance(outcomes[i], Delivered)}
        watched, known = list(outcomes), set(self.topics)
        failed: dict[str, Retry] = {}
        for index in blamed:
            outcome, topic = outcomes[index], messages[index].topic
            assert isinstance(outcome, Retry)
            if index < took.get(topic, -1) and outcome.fault in KIND_OF_FAULT:
                watched[index] = replace(outcome, counted=True, fault=None)
                continue
            failed[topic] = outcome
            # A contract that lets such events die does so once: an event that probes a known fault goes on waiting.
            fault = None if topic in known else outcome.fault
            watched[index] = replace(outcome, topic=topic, fault=fault)
        for topic, outcome in failed.items():
            self._block(topic, outcome)
        return watched

    def _close_topics(self, messages: Sequence[Message], outcomes: Sequence[Outcome]) -> None:
        for message, outcome in zip(messages, outcomes, strict=True):
            if message.topic in self.topics and isinstance(outcome, Delivered):
                breaker = self.topics.pop(message.topic)
                log.debug(
                    "topic takes events again",
                    extra={
                        "destination": self.name,
                        "topic": message.topic,
                        "seconds": round(time.time() - breaker.since, 1),
                    },
                )

    def _block(self, topic: str, blame: Retry) -> None:
        if topic not in self.topics:
            self.topics[topic] = Breaker(blame.error, fault=blame.fault)
            # The driver logs it once for all lanes.
            log.debug(
                "topic takes no events; they wait",
                extra={"destination": self.name, "topic": topic, "reason": blame.error},
            )
        self.topics[topic].postpone(blame.error)

    def _open(self, reason: str) -> None:
        if not self.open:
            self.since = time.time()
            # The driver logs it once for all lanes.
            log.debug("destination is down", extra={"destination": self.name, "reason": reason})
            self.opened += 1
        self.open, self.reason = True, reason
        self._postpone()

    def _postpone(self, at_least: float = 0.0) -> None:
        # Only a delivered batch resets the pause: a destination may answer a probe and take no messages.
        self._probe_at = time.monotonic() + max(self.pause, at_least)
        self.pause = min(self.pause * 2, LONGEST_PROBE)


def _has_breaker(fault: TopicFault | None, guarded: bool) -> bool:
    """Does a topic with this fault have a breaker? Events may be wanted to die of what no waiting mends."""
    return guarded or fault not in KIND_OF_FAULT


class Block(NamedTuple):
    """What events wait for: a destination that is down, one topic of it, or (without a destination) a paused type."""

    destination: str
    topic: str | None = None
    type: str | None = None
