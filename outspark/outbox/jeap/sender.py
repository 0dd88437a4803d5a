"""Immediate sending: the caller's process sends committed messages, through publishers that are kept for reuse."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, Literal

from outspark.brokers import open_publisher
from outspark.config import durations
from outspark.config.settings import DestinationSettings, RouteSettings
from outspark.contracts.jeap import enqueue
from outspark.database.names import TableName
from outspark.delivery.destination import Destination
from outspark.delivery.dispatcher import Dispatcher
from outspark.delivery.envelopes import make_envelope
from outspark.delivery.permit import UNCONDITIONAL
from outspark.delivery.routing import Router
from outspark.event import Event
from outspark.observability.metrics import JEAP_POST_TOTAL, JEAP_TRANSMIT, Tally
from outspark.observability.otel import NoTracing
from outspark.outbox.statements import Step, compose
from outspark.outcome import KIND_OF_FAULT, Dead, DeadKind, Delivered, Outcome, Retry

log = logging.getLogger(__name__)

DEFAULT: Final = "default"
"""The name of the destination for clusters that are not configured."""
SHOWN: Final = 20
"""The largest number of ids in one log line."""
_KEPT = 16

DeliveryType = Literal["immediate", "scheduled"]
TxStatus = Literal["committed", "rolled_back", "unknown"]


class Sender:
    """Sends the messages of one outbox; threads may share it. A batch has publishers to itself while it is sent.

    `timeout` bounds how long a caller waits, `block` how long the search for a Kafka broker may take.
    """

    def __init__(
        self,
        table: TableName,
        destinations: Mapping[str, DestinationSettings],
        timeout: timedelta,
        block: timedelta,
        tally: Tally,
    ) -> None:
        self.hold = compose(enqueue.hold_sql, table)
        self._mark = compose(enqueue.mark_sql, table)
        self.timeout = timeout.total_seconds()
        self.longest = (timeout + block).total_seconds()
        """An upper bound for sending one message, in seconds."""
        self._tally = tally
        self._source = str(table)
        self._destinations = {name: _bounded(each, block) for name, each in destinations.items()}
        # For each process its own: a publisher's threads do not survive a fork.
        self._idle: dict[int, list[Dispatcher]] = {}
        if destinations:
            # Errors in the settings are raised here, not by the first message.
            self._keep(self._open())

    @property
    def can_send(self) -> bool:
        return bool(self._destinations)

    def send(self, events: Sequence[Event], timeout: float) -> Step | None:
        """Publish within `timeout` seconds and return the step that marks the outcomes, if any. Never raises."""
        started = time.monotonic()
        try:
            with self._dispatcher() as dispatcher:
                for name in {self._destination(event) for event in events}:
                    dispatcher.destinations[name].probe()
                left = timeout - (time.monotonic() - started)
                outcomes = dispatcher.dispatch(events, left, UNCONDITIONAL).outcomes
        except Exception:
            log.exception("sending failed; the messages are left to the relay", extra=_shown(events))
            return None
        self._observe(outcomes, time.monotonic() - started)
        return self._settle(events, outcomes)

    def count(self, messages: int, delivery_type: DeliveryType, tx_status: TxStatus) -> None:
        if messages:
            self._tally.add(JEAP_POST_TOTAL, messages, delivery_type=delivery_type, tx_status=tx_status)

    def close(self) -> None:
        """Close the publishers that are not in use."""
        for dispatcher in self._idle.pop(os.getpid(), []):
            _close(dispatcher)

    def _observe(self, outcomes: Sequence[Outcome], took: float) -> None:
        sent = sum(isinstance(outcome, Delivered) for outcome in outcomes)
        if sent:
            labels = {"delivery_type": "immediate", "source": self._source}
            self._tally.observe_many(JEAP_TRANSMIT, [took] * sent, **labels)

    def _settle(self, events: Sequence[Event], outcomes: Sequence[Outcome]) -> Step | None:
        fates: dict[str, DeadKind | None] = {}
        left: list[Event] = []
        reason = "an earlier message was not delivered"
        for event, outcome in zip(events, outcomes, strict=True):
            match outcome:
                case Delivered():
                    fates[event.id] = None
                case Dead():
                    fates[event.id] = outcome.kind
                    log.error("message failed", extra={**_shown([event]), "error": outcome.error})
                case Retry(error, fault="missing" | "forbidden" as fault):
                    fates[event.id] = KIND_OF_FAULT[fault]
                    log.error("message failed", extra={**_shown([event]), "error": error})
                case _:
                    left.append(event)
                    reason = outcome.error if isinstance(outcome, Retry) else reason
        if left:
            log.warning("messages are left to the relay", extra={**_shown(left), "reason": reason})
        return Step(self._mark, enqueue.mark_params(fates)) if fates else None

    @contextmanager
    def _dispatcher(self) -> Iterator[Dispatcher]:
        """A dispatcher for this batch alone. After an error it is closed instead of reused."""
        try:
            dispatcher = self._idle.get(os.getpid(), []).pop()
        except IndexError:
            dispatcher = self._open()
        try:
            yield dispatcher
        except BaseException:
            _close(dispatcher)
            raise
        self._keep(dispatcher)

    def _keep(self, dispatcher: Dispatcher) -> None:
        idle = self._idle.setdefault(os.getpid(), [])
        if len(idle) < _KEPT:
            idle.append(dispatcher)
        else:
            _close(dispatcher)

    def _open(self) -> Dispatcher:
        destinations = {
            name: Destination(name, open_publisher(name, settings), self.timeout)
            for name, settings in self._destinations.items()
        }
        envelopes = {name: make_envelope(each, self._source) for name, each in self._destinations.items()}
        return Dispatcher(
            router=Router([RouteSettings(destination=DEFAULT)], destinations, self._source),
            destinations=destinations,
            transform=None,
            ordered=True,
            tally=self._tally,
            tracing=NoTracing(),
            envelopes={name: envelope for name, envelope in envelopes.items() if envelope is not None},
            guarded=False,
        )

    def _destination(self, event: Event) -> str:
        return event.cluster if event.cluster in self._destinations else DEFAULT


def _bounded(settings: DestinationSettings, block: timedelta) -> DestinationSettings:
    if settings.type != "kafka":
        return settings
    options = {"max_block": durations.text(block), **settings.options}
    return settings.model_copy(update={"options": options})


def _close(dispatcher: Dispatcher) -> None:
    for destination in dispatcher.destinations.values():
        destination.publisher.close()


def _shown(events: Sequence[Event]) -> dict[str, object]:
    return {"count": len(events), "messages": [event.id for event in events[:SHOWN]]}
