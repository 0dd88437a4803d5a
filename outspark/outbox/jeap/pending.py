"""What one transaction has put into outboxes: held before its commit, counted at its end, sent once it is committed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Thread
from typing import TypeVar

from outspark.contracts.jeap import enqueue
from outspark.event import Event
from outspark.outbox.jeap.sender import SHOWN, Sender, TxStatus
from outspark.outbox.jeap.statements import Step

log = logging.getLogger(__name__)

T = TypeVar("T")

# What a publisher may take beyond its time to say so, in seconds.
_GRACE = 0.5


@dataclass(slots=True)
class OutboxWrites:
    """What went into one outbox."""

    sender: Sender
    immediate: list[Event] = field(default_factory=list)
    scheduled: int = 0
    held: list[Event] = field(default_factory=list)
    """Those to be sent at once, by the look before the commit."""
    gone: int = 0
    """Immediate ones that went with a savepoint."""

    def keep(self, ids: Collection[int]) -> None:
        """`ids` are those that the transaction still has."""
        self.held = [event for event in self.immediate if int(event.id) in ids]
        self.gone = len(self.immediate) - len(self.held)

    def count(self, status: TxStatus) -> None:
        # Savepoints are not seen where nothing is held: a scheduled message fares as its transaction.
        self.sender.count(len(self.immediate) - self.gone, "immediate", status)
        self.sender.count(self.gone, "immediate", "rolled_back")
        self.sender.count(self.scheduled, "scheduled", status)


class Pending:
    """Belongs to one transaction. Runs no statement itself: it hands out steps, for any driver."""

    def __init__(self) -> None:
        self._writes: dict[Sender, OutboxWrites] = {}

    def add(self, sender: Sender, events: Sequence[Event], *, immediate: bool) -> None:
        writes = self._writes.setdefault(sender, OutboxWrites(sender))
        if immediate:
            writes.immediate.extend(events)
        else:
            writes.scheduled += len(events)

    def holds(self) -> list[tuple[OutboxWrites, Step]]:
        """To be run before the commit; each share keeps what its step answers.

        The relay leaves the messages alone for the longest send × their number, over all outboxes: 2 messages into
        one and 1 into another, at 15 s + 5 s each, are held for 60 s.
        """
        all_writes = [writes for writes in self._writes.values() if writes.immediate]
        seconds = sum(writes.sender.longest * len(writes.immediate) for writes in all_writes)
        return [
            (writes, Step(writes.sender.hold, enqueue.hold_params(writes.immediate, seconds)))
            for writes in all_writes
        ]

    def count(self, status: TxStatus) -> None:
        for writes in self._writes.values():
            writes.count(status)

    def deliver(self) -> list[Step]:
        """Send what is held, in the time of the most patient outbox; answers how to mark it.

        TimeoutError when a publisher does not keep to that time.
        """
        return _start(self._deliver).result(self.timeout + _GRACE)

    async def deliver_async(self) -> list[Step]:
        """`deliver` while the event loop goes on."""
        return await asyncio.wait_for(asyncio.wrap_future(_start(self._deliver)), self.timeout + _GRACE)

    def _deliver(self) -> list[Step]:
        until = time.monotonic() + self.timeout
        steps = (
            writes.sender.send(writes.held, min(writes.sender.timeout, until - time.monotonic()))
            for writes in self._writes.values()
            if writes.held
        )
        return [step for step in steps if step is not None]

    @property
    def holds_any(self) -> bool:
        return any(writes.held for writes in self._writes.values())

    @property
    def timeout(self) -> float:
        return max((writes.sender.timeout for writes in self._writes.values() if writes.held), default=0.0)


def _start(work: Callable[[], T]) -> Future[T]:
    """In a thread of its own: one that hangs, asking for a host say, holds up neither caller nor process."""
    future: Future[T] = Future()
    context = copy_context()

    def run() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(context.run(work))
        except BaseException as error:  # noqa: BLE001 - the waiting side raises it
            future.set_exception(error)

    Thread(target=run, name="outspark-send", daemon=True).start()
    return future


def note(step: Step, marked: Collection[int]) -> None:
    """`marked` are the ids that the step answered."""
    late = [id for id in step.params["ids"] if id not in marked]
    if late:
        log.info(
            "the relay was faster; these may have gone out twice",
            extra={"count": len(late), "messages": late[:SHOWN]},
        )
