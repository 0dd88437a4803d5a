"""Stands before a real publisher: what is meant to pass goes on to the broker, and its answer is what counts.

Each message carries the name of its sending, so that the broker alone can tell in the end what arrived, and in
which order. The journal knows only what was sent and what was answered: a lane may be killed between the two.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from outspark.brokers import Publisher, open_publisher
from outspark.event import Message
from outspark.outcome import DELIVERED, HELD, Dead, Delivered, Held, Outcome, Retry, Skipped
from tests.history.journal import send_name
from tests.history.publisher import Address, Conduct, JournalPublisher

SEND_HEADER = "send"
"""What a broker's reader looks at; the same in lower case as HTTP has it."""


class PassingPublisher(JournalPublisher):
    """`keeps_order` is that of the real publisher."""

    def __init__(self, process: str, conduct: Conduct, address: Address) -> None:
        super().__init__(process, conduct)
        self._address = address
        self._real: Publisher = open_publisher("broker", address.settings)
        self.keeps_order = self._real.keeps_order

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        """Messages that follow one another without a mishap go out as one batch."""
        self._claiming = False
        batch = _Batch(self.keeps_order, time.monotonic() + timeout)
        run: list[Message] = []
        for message in messages:
            fate = self._fate(message)
            if fate != "delivered":
                self._send(run, batch)
                run.clear()
            if batch.holds(message):
                batch.add(message, HELD)
            elif fate == "delivered":
                run.append(message)
            else:
                batch.add(message, self._suffer(message, fate))
        self._send(run, batch)
        return [batch.outcomes[message.id] for message in messages]

    def check(self, timeout: float) -> None:
        super().check(timeout)
        self._real.check(timeout)

    def close(self) -> None:
        self._real.close()
        super().close()

    def _send(self, run: Sequence[Message], batch: _Batch) -> None:
        if not run:
            return
        for message in run:
            self._note(message, "sent")
        timeout = max(batch.deadline - time.monotonic(), 0.001)
        answers = self._real.publish([self._addressed(message) for message in run], timeout)
        for message, answer in zip(run, answers, strict=True):
            # Before anything is noted: the broker has it, and nobody else knows.
            if answer == DELIVERED and self._kills_after(message):
                self._die(message)
        for message, answer in zip(run, answers, strict=True):
            # What stands behind a failure was not tried, if the publisher is right about that.
            if answer == DELIVERED or not batch.behind_failure(message):
                self._note_answer(message, answer)
            batch.add(message, answer)

    def _note_answer(self, message: Message, answer: Outcome) -> None:
        match answer:
            case Delivered():
                self._note(message, "acked")
            case Retry(error, counted):
                self._note(message, "failed" if counted else "down", error)
            case Dead(error):
                self._note(message, "dead", error)
            case Held():
                pass
            case Skipped():
                raise AssertionError("a publisher skips nothing")
            case _:
                assert_never(answer)

    def _addressed(self, message: Message) -> Message:
        send = send_name(self._process, self._batch, message.id)
        return dataclasses.replace(message, topic=self._address.topic, headers={SEND_HEADER: send})


def open_journal_publisher(process: str, conduct: Conduct) -> JournalPublisher:
    if conduct.address is None:
        return JournalPublisher(process, conduct)
    return PassingPublisher(process, conduct, conduct.address)


@dataclass(slots=True)
class _Batch:
    """What became of a batch so far."""

    keeps_order: bool
    deadline: float
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    _failed: set[str | None] = field(default_factory=set)
    _down: bool = False

    def add(self, message: Message, outcome: Outcome) -> None:
        self.outcomes[message.id] = outcome
        if outcome != DELIVERED:
            self._failed.add(message.order_key)
        self._down |= isinstance(outcome, Retry) and not outcome.counted

    def behind_failure(self, message: Message) -> bool:
        return self.keeps_order and message.order_key is not None and message.order_key in self._failed

    def holds(self, message: Message) -> bool:
        """A lane would not send it either: its breaker opens at once."""
        return self._down or self.behind_failure(message)
