"""A backlog for a topic that is away, on a real broker: what may happen to it until the topic is back, and after."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from outspark.brokers import Publisher
from outspark.delivery.destination import Destination
from outspark.event import Message
from outspark.outcome import Outcome
from outspark.relay.lane import Lane
from tests.integration.relay.harness import Harness
from tests.integration.relay.jeap_harness import JeapHarness
from tests.integration.relay.omnibox_harness import OmniboxHarness
from tests.waiting import wait_for

KEYS, BATCH, SOUND = 20, 100, 200
"""SOUND is how many events go to a topic of the same destination that is there."""
MOST_TRIES = BATCH + 10
"""To a topic that is away: one batch, and single probes."""

OPENOUTBOX = """\
-- A payload is the number of its event
INSERT INTO openoutbox_events (event_id, event_type, partition_key, payload, created_at)
SELECT gen_random_uuid(), %(topic)s::text, %(topic)s::text || n %% %(keys)s, convert_to(n::text, 'UTF8'),
       now() - interval '1 hour' + n * interval '1 microsecond'
FROM generate_series(0, %(count)s::int - 1) AS n"""

JEAP = """\
-- The same for jEAP
INSERT INTO deferred_message (id, message, key, topic, message_id, message_idempotence_id, message_type_name,
  created, send_immediately)
SELECT nextval('deferred_message_sequence'), convert_to(n::text, 'UTF8'),
       convert_to(%(topic)s::text || n %% %(keys)s, 'UTF8'), %(topic)s::text, n, n, 'Numbered', now(), false
FROM generate_series(0, %(count)s::int - 1) AS n"""

OMNIBOX = """\
-- The same for omni-box
INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, topic, partition_key, payload, status,
  scheduled_at, created_at)
SELECT gen_random_uuid(), 't', 'order', gen_random_uuid(), %(topic)s::text, %(topic)s::text || n %% %(keys)s,
       to_jsonb(n), 'pending', now(), now() - interval '1 hour' + n * interval '1 microsecond'
FROM generate_series(0, %(count)s::int - 1) AS n"""


@dataclass(slots=True)
class Counted:
    """A real publisher, and how much it was asked to send where."""

    publisher: Publisher
    tries: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    keeps_order: bool = False
    keeps_headers: bool = False

    def __post_init__(self) -> None:
        self.keeps_order, self.keeps_headers = self.publisher.keeps_order, self.publisher.keeps_headers

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        self.tries.update(message.topic for message in messages)
        self.calls.update({message.topic for message in messages})
        return self.publisher.publish(messages, timeout)

    def check(self, timeout: float) -> None:
        self.publisher.check(timeout)

    def close(self) -> None:
        self.publisher.close()


@dataclass(slots=True)
class Backlog:
    """Events for the topic `gone`, and on demand some for another one, `sound`."""

    harness: Harness
    publisher: Counted
    size: int
    gone: str
    sound: str | None = None
    tries_while_away: int = 4
    """How often the topic is tried before it comes back."""

    def __post_init__(self) -> None:
        self.harness.timeout = 3.0
        self.harness.source["batch_size"] = BATCH
        self.write(self.gone, self.size)
        if self.sound is not None:
            self.write(self.sound, SOUND)

    def write(self, topic: str, count: int) -> None:
        statement = {JeapHarness: JEAP, OmniboxHarness: OMNIBOX}.get(type(self.harness), OPENOUTBOX)
        self.harness.conn.execute(statement, {"topic": topic, "count": count, "keys": KEYS})

    def lane(self) -> Lane:
        (name,) = self.harness.brokers
        return Lane(self.harness.spec(), {name: Destination(name, self.publisher, self.harness.timeout)})

    def await_outage(self) -> None:
        """Until the fault is known, has been probed, and all that goes elsewhere is through."""
        wait_for(lambda: self.publisher.calls[self.gone] >= self.tries_while_away, timeout=30, what="probes")
        wait_for(
            lambda: self.harness.waiting() <= self.size, timeout=30, what="the events of the other topic"
        )

    def await_drained(self) -> None:
        started = time.monotonic()
        wait_for(
            lambda: not self.harness.waiting(), timeout=30 + self.size / 50, what="the end of the backlog"
        )
        print(f"{self.size} events drained {time.monotonic() - started:.1f} s after {self.gone} was back")

    def tallies(self) -> Counter[tuple[str, int]]:
        """How many events are in which state, with how many attempts."""
        return Counter(self.harness.states().values()) if self.sound is None else Counter(self._rows())

    def _rows(self) -> list[tuple[str, int]]:
        table = "outbox_events" if isinstance(self.harness, OmniboxHarness) else "openoutbox_events"
        attempts = "attempts_made" if isinstance(self.harness, OmniboxHarness) else "attempts"
        return [
            (status, tries) for status, tries in self.harness.ask(f"SELECT status, {attempts} FROM {table}")
        ]


def assert_in_order(payloads: Sequence[bytes], count: int) -> None:
    """All events are there, those of each key in their order; what comes twice counts where it came first."""
    numbers = list(dict.fromkeys(int(payload) for payload in payloads))
    assert len(numbers) == count
    by_key: dict[int, list[int]] = {}
    for number in numbers:
        by_key.setdefault(number % KEYS, []).append(number)
    assert all(by_key[key] == list(range(key, count, KEYS)) for key in range(KEYS))


def goes_and_comes_back(
    backlog: Backlog,
    mend: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
    most_tries: int = MOST_TRIES,
) -> None:
    """While the topic is away nothing of it dies or counts an attempt; once it is back, all is delivered."""
    with backlog.harness.working(backlog.lane()):
        backlog.await_outage()
        waiting = {state for state in backlog.tallies() if state[0].upper() not in ("DELIVERED", "COMPLETED")}
        assert {status.upper() for status, _ in waiting} <= {"PENDING", "DELIVERING"}
        assert {attempts for _, attempts in waiting} == {0}
        assert backlog.publisher.tries[backlog.gone] <= most_tries
        mend()
        backlog.await_drained()
    lines = [
        one for one in caplog.records if one.name.startswith("outspark") and one.levelno >= logging.WARNING
    ]
    assert len(lines) <= 3, [line.getMessage() for line in lines]
    ((status, attempts),) = backlog.tallies()
    assert (status.upper() in ("DELIVERED", "COMPLETED"), attempts) == (True, 0)
