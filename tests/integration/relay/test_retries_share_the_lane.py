"""Heads that are tried again go in small batches, and leave the lane to others for most of its time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import pytest

from outspark.event import Message
from outspark.outcome import Outcome, Retry
from tests.integration.relay.harness import Broker, Harness
from tests.waiting import wait_for

HANG = 0.1
"""Seconds that a batch with a message that nobody answers takes."""


@dataclass(slots=True)
class Hanging(Broker):
    """Does not answer what is of type `hang`."""

    hung: list[int] = field(default_factory=list)
    """How many such messages each batch had."""

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        hanging = [message for message in messages if message.topic == "hang"]
        self.hung.append(len(hanging))
        if hanging:
            time.sleep(HANG)
        answers = iter(
            Broker.publish(self, [message for message in messages if message.topic != "hang"], timeout)
        )
        return [Retry("no answer") if message.topic == "hang" else next(answers) for message in messages]


@pytest.fixture
def hanging(leased: Harness) -> Harness:
    leased.brokers["broker"] = Hanging()
    leased.source |= {"batch_size": 10, "retry": {"base_delay": "10ms", "max_delay": "10ms", "jitter": 0.0}}
    return leased


def test_keys_that_hang_do_not_starve_the_others(hanging: Harness) -> None:
    for number in range(60):
        hanging.enqueue(f"h{number}", type="hang", key=f"h{number}")
    with hanging.working() as lane:
        wait_for(lambda: sum(len(loop.source.keys.due(inf)) for d in lane.sessions for loop in d.loops) == 60)
        # Six batches of ten heads are due at any time, each of which takes a tenth of a second.
        for number in range(20):
            hanging.enqueue(f"g{number}", type="good", key="good")
            sent = time.monotonic()
            wait_for(lambda: hanging.broker.delivered()[-1:] == [f"g{number}"])  # noqa: B023
            assert time.monotonic() - sent < 4 * HANG


def test_heads_take_turns(hanging: Harness) -> None:
    """Those that hang are due again and again; one that failed once has its turn all the same."""
    for number in range(60):
        hanging.enqueue(f"h{number}", type="hang", key=f"h{number}")
    hanging.source["retry"]["max_attempts"] = 1000
    hanging.broker.answers["once"] = [Retry("a hiccup")]
    hanging.enqueue("once", type="good", key="once")
    with hanging.working():
        wait_for(lambda: "once" in hanging.broker.delivered())


def test_heads_are_tried_again_in_small_batches(hanging: Harness) -> None:
    hanging.source["batch_size"] = 200
    broker = hanging.broker
    assert isinstance(broker, Hanging)
    for number in range(100):
        hanging.enqueue(f"h{number}", type="hang", key=f"h{number}")
    with hanging.working():
        wait_for(lambda: len(broker.hung) >= 5)
    assert broker.hung[0] == 100
    assert max(broker.hung[1:]) <= 20
