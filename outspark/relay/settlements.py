"""What is written of an event that was not delivered: a conversion of its outcome that changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, assert_never

from outspark import backoff
from outspark.config.settings import SourceSettings
from outspark.contracts.contract import Settlement
from outspark.contracts.relay_statements import RelayStatements
from outspark.delivery.destination import Block, Destination
from outspark.event import Event
from outspark.outcome import KIND_OF_FAULT, Dead, DeadKind, Delivered, Held, Outcome, Retry, Skipped
from outspark.redaction import storable


class Unfinished(NamedTuple):
    """An event that was not delivered, what is written of it, and the breaker that it waits for, if there is one."""

    event: Event
    settlement: Settlement
    waits_for: Block | None = None


@dataclass(frozen=True, slots=True)
class Settlements:
    settings: SourceSettings
    statements: RelayStatements

    def of(self, event: Event, outcome: Outcome, destination: Destination | None) -> Unfinished:
        match outcome:
            case Held():
                return Unfinished(event, Settlement(event.id, "pending"))
            case Skipped(reason):
                return Unfinished(event, Settlement(event.id, "done", error=storable(f"skipped: {reason}")))
            case Dead(error, kind):
                return _dead(event, error, kind)
            case Retry(error, fault="missing" | "forbidden" as fault) if self._lets_unroutable_die():
                return _dead(event, error, KIND_OF_FAULT[fault])
            case Retry(error, counted=False):
                settlement = Settlement(event.id, "pending", error=storable(error))
                return Unfinished(event, settlement, waits_for(event, outcome, destination))
            case Retry():
                return self._retry(event, outcome)
            case Delivered():
                raise AssertionError("delivered events are settled together")
            case _:
                assert_never(outcome)

    def _retry(self, event: Event, outcome: Retry) -> Unfinished:
        policy = self.settings.retry
        failures = event.attempts + 1
        limit = policy.max_attempts if event.max_attempts is None else event.max_attempts
        if failures >= limit and self.statements.counts_attempts:
            return _dead(event, f"gave up after {failures} attempts: {outcome.error}")
        wait = outcome.after or backoff.delay(
            failures, base=policy.base_delay, cap=policy.max_delay, jitter=policy.jitter
        )
        error = storable(outcome.error)
        return Unfinished(event, Settlement(event.id, "pending", counted=True, wait=wait, error=error))

    def _lets_unroutable_die(self) -> bool:
        return self.settings.on_unroutable == "dead" or self.statements.marks_unroutable


def waits_for(event: Event, outcome: Retry, destination: Destination | None) -> Block:
    """What an event waits for that is not at fault itself: its destination, a topic of it, or its type."""
    return Block("", type=event.type) if destination is None else Block(destination.name, outcome.topic)


def _dead(event: Event, error: str, kind: DeadKind = "other") -> Unfinished:
    return Unfinished(event, Settlement(event.id, "dead", counted=True, error=storable(error), kind=kind))
