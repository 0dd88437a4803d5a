"""What one transaction has put into outboxes: held before its commit, counted at its end, sent after its commit."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Thread
from typing import TypeVar

from outspark.contracts.jeap import enqueue
from outspark.event import Event
from outspark.outbox.jeap.sender import SHOWN, Sender, TxStatus
from outspark.outbox.statements import Script, Step

log = logging.getLogger(__name__)

T = TypeVar("T")

# How long a publisher may take to report its own timeout, in seconds.
_GRACE = 0.5


@dataclass(slots=True)
class OutboxWrites:
    """What went into one outbox."""

    sender: Sender
    immediate: list[Event] = field(default_factory=list)
    scheduled: int = 0
    held: list[Event] = field(default_factory=list)
    """The immediate messages that the transaction still had before its commit."""
    gone: int = 0
    """The number of immediate messages that were rolled back with a savepoint."""

    def keep(self, ids: Collection[int]) -> None:
        """`ids` are those of the messages that the transaction still has."""
        self.held = [event for event in self.immediate if int(event.id) in ids]
        self.gone = len(self.immediate) - len(self.held)

    def count(self, status: TxStatus) -> None:
        # Without a hold there is no answer that shows savepoints: a scheduled message counts as its transaction ends.
        self.sender.count(len(self.immediate) - self.gone, "immediate", status)
        self.sender.count(self.gone, "immediate", "rolled_back")
        self.sender.count(self.scheduled, "scheduled", status)


class Pending:
    """Belongs to one transaction. It runs no statement itself: `hold` and `deliver` hand out scripts for any driver."""

    def __init__(self) -> None:
        self._writes: dict[Sender, OutboxWrites] = {}

    def add(self, sender: Sender, events: Sequence[Event], *, immediate: bool) -> None:
        writes = self._writes.setdefault(sender, OutboxWrites(sender))
        if immediate:
            writes.immediate.extend(events)
        else:
            writes.scheduled += len(events)

    def hold(self) -> Script[None]:
        """To be run before the commit: until when the relay leaves the messages alone.

        That is the longest time that one send may take × the number of messages, over all outboxes: 2 messages in
        one outbox and 1 in another, with 15 s + 5 s each, are held for 60 s.
        """
        all_writes = [writes for writes in self._writes.values() if writes.immediate]
        seconds = sum(writes.sender.longest * len(writes.immediate) for writes in all_writes)
        for writes in all_writes:
            rows = yield Step(writes.sender.hold, enqueue.hold_params(writes.immediate, seconds))
            writes.keep({id for (id,) in rows})

    def count(self, status: TxStatus) -> None:
        for writes in self._writes.values():
            writes.count(status)

    def deliver(self) -> list[Script[None]]:
        """Send what is held, within the longest timeout of the outboxes; returns the scripts that mark it.

        TimeoutError if a publisher exceeds that time.
        """
        return _start(self._deliver).result(self.timeout + _GRACE)

    async def deliver_async(self) -> list[Script[None]]:
        """`deliver` without blocking the event loop."""
        return await asyncio.wait_for(asyncio.wrap_future(_start(self._deliver)), self.timeout + _GRACE)

    def _deliver(self) -> list[Script[None]]:
        until = time.monotonic() + self.timeout
        steps = [
            writes.sender.send(writes.held, min(writes.sender.timeout, until - time.monotonic()))
            for writes in self._writes.values()
            if writes.held
        ]
        return [_mark(step) for step in steps if step is not None]

    @property
    def holds_any(self) -> bool:
        return any(writes.held for writes in self._writes.values())

    @property
    def timeout(self) -> float:
        return max((writes.sender.timeout for writes in self._writes.values() if writes.held), default=0.0)


def _start(work: Callable[[], T]) -> Future[T]:
    """In a thread of its own: work that hangs, in a DNS lookup for instance, blocks neither caller nor process exit."""
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


def _mark(step: Step) -> Script[None]:
    marked = {id for (id,) in (yield step)}
    late = [id for id in step.params["ids"] if id not in marked]
    if late:
        log.info(
            "the relay was faster; these messages may have been sent twice",
            extra={"count": len(late), "messages": late[:SHOWN]},
        )


@contextmanager
def left_to_the_relay() -> Iterator[None]:
    """Around everything that follows the commit: an error there must not reach the caller, who has committed."""
    try:
        yield
    except Exception:
        log.exception("messages could not be sent and marked immediately; they are left to the relay")
