"""A claim brings no more bytes than a lane may hold, and what it leaves is found by the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from outspark.database.doorbell import doorbell_ddl
from outspark.database.names import TableName
from outspark.event import Message
from outspark.outcome import DELIVERED, Outcome, Retry
from outspark.relay.loop import SourceLoop
from outspark.relay.waking import Doorbell
from tests.databases import Database
from tests.integration.relay.harness import Broker, Harness, close_harness, open_harness
from tests.integration.relay.jeap_harness import open_jeap_harness
from tests.integration.relay.omnibox_harness import open_omnibox_harness
from tests.waiting import wait_for

EVENTS, KEYS = 64, 8
LARGE = 1024 * 1024
BOUND = 3 * LARGE
LONG_POLL = "60s"
"""Whoever waits for this does not get through in the time of a test."""

WAYS = [
    ("openoutbox", "key", "row"),
    ("openoutbox", "key", "slot"),
    ("openoutbox", "none", "row"),
    ("omnibox", "key", "row"),
    ("omnibox", "key", "slot"),
    ("omnibox", "none", "row"),
    ("jeap", "key", "slot"),
]
FILL = {
    "openoutbox": """
-- A payload is a number and much that can be compressed
INSERT INTO openoutbox_events (event_id, event_type, partition_key, payload, created_at)
SELECT gen_random_uuid(), 't', 'k' || n %% %(keys)s, convert_to(n || repeat(' ', %(size)s), 'UTF8'),
       now() - interval '1 hour' + n * interval '1 microsecond'
FROM generate_series(%(first)s::int, %(last)s::int) AS n""",
    "omnibox": """
-- The same for omni-box
INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, topic, partition_key, payload, status,
  scheduled_at, created_at)
SELECT gen_random_uuid(), 't', 'order', gen_random_uuid(), 't', 'k' || n %% %(keys)s,
       to_jsonb(n || repeat(' ', %(size)s)), 'pending', now() - interval '1 hour',
       now() - interval '1 hour' + n * interval '1 microsecond'
FROM generate_series(%(first)s::int, %(last)s::int) AS n""",
    "jeap": """
-- The same for jEAP
INSERT INTO deferred_message (id, message, key, topic, message_id, message_idempotence_id, message_type_name,
  created, send_immediately)
SELECT nextval('deferred_message_sequence'), convert_to(n || repeat(' ', %(size)s), 'UTF8'),
       convert_to('k' || n %% %(keys)s, 'UTF8'), 't', n, n, 'Numbered', now(), false
FROM generate_series(%(first)s::int, %(last)s::int) AS n""",
}
MARKED = {
    "openoutbox": "SELECT count(*) FROM openoutbox_events WHERE status = 'DELIVERING'",
    "omnibox": "SELECT count(*) FROM outbox_events WHERE locked_at IS NOT NULL",
}


@dataclass(slots=True)
class Scales(Broker):
    """Weighs each batch, which is a whole claim because this broker keeps order, and fails the first try of some."""

    keeps_order: bool = True
    failing: set[int] = field(default_factory=set)
    sizes: list[list[int]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    marked: Callable[[], int] | None = None
    """How many rows are marked as claimed."""

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        self.sizes.append([_size(message) for message in messages])
        if self.marked is not None:
            assert self.marked() == len(messages)
        failed: set[int] = set()
        return [self._try(int(message.payload.strip(b' "')), failed) for message in messages]

    def _try(self, number: int, failed: set[int]) -> Outcome:
        """What stands behind a failure is not sent."""
        if number in self.failing or number % KEYS in failed:
            self.failing.discard(number)
            failed.add(number % KEYS)
            return Retry("not yet")
        self.numbers.append(number)
        return DELIVERED

    def is_whole(self, *, ordered: bool = True) -> bool:
        """Is every event there once, and each key in its order?"""
        keys = [[number for number in self.numbers if number % KEYS == key] for key in range(KEYS)]
        in_order = not ordered or all(key == sorted(key) for key in keys)
        return sorted(self.numbers) == list(range(len(self.numbers))) and in_order


def _size(message: Message) -> int:
    return len(message.payload) + len(message.headers.get("trace", ""))


@dataclass(slots=True)
class Heavy:
    """A place of one contract with a backlog that is too large for one claim."""

    harness: Harness
    contract: str
    scales: Scales

    def write(self, first: int, last: int, size: int = LARGE) -> None:
        given = {"first": first, "last": last, "size": size, "keys": KEYS}
        self.harness.conn.execute(FILL[self.contract], given)

    def assert_bounded(self, bound: int = BOUND) -> None:
        """All but the last of each batch are less than the bound, and no batch is much smaller than it could be."""
        assert all(sum(batch[:-1]) < bound for batch in self.scales.sizes), self.scales.sizes
        assert len(self.scales.sizes) <= EVENTS // 2, self.scales.sizes


def _open(database: Database, contract: str) -> Harness:
    if contract == "jeap":
        return open_jeap_harness(database)
    return open_omnibox_harness(database) if contract == "omnibox" else open_harness(database)


@pytest.fixture(params=WAYS, ids=" ".join)
def heavy(request: pytest.FixtureRequest, database: Database) -> Iterator[Heavy]:
    contract, ordering, lease = request.param
    harness = _open(database, contract)
    harness.source |= {"ordering": ordering, "lease": lease, "batch_bytes": BOUND, "poll_interval": LONG_POLL}
    scales = Scales()
    harness.brokers["broker"] = scales
    yield Heavy(harness, contract, scales)
    close_harness(harness)


def test_each_batch_is_within_the_bound_and_all_arrive_in_order(heavy: Heavy) -> None:
    heavy.write(0, EVENTS - 1)
    if heavy.harness.source["lease"] == "row":
        heavy.scales.marked = lambda: int(heavy.harness.ask(MARKED[heavy.contract])[0][0])

    heavy.harness.work_to_the_end()

    heavy.assert_bounded()
    assert len(heavy.scales.numbers) == EVENTS
    assert heavy.scales.is_whole(ordered=heavy.harness.source["ordering"] == "key")


def test_an_event_larger_than_the_bound_is_delivered(heavy: Heavy) -> None:
    heavy.harness.source["batch_bytes"] = 1000
    heavy.write(0, 9, 100)
    heavy.write(10, 11, LARGE)
    heavy.write(12, 19, 100)

    heavy.harness.work_to_the_end()

    heavy.assert_bounded(1000)
    assert len(heavy.scales.numbers) == 20
    assert heavy.scales.is_whole(ordered=heavy.harness.source["ordering"] == "key")


@pytest.mark.parametrize("heavy", [way for way in WAYS if way[1] == "key"], indirect=True, ids=" ".join)
def test_heads_that_are_tried_again_are_within_the_bound_too(heavy: Heavy) -> None:
    heavy.write(0, 3 * KEYS - 1)
    heavy.scales.failing = set(range(KEYS))

    heavy.harness.work_to_the_end()

    assert all(sum(batch[:-1]) < BOUND for batch in heavy.scales.sizes), heavy.scales.sizes
    assert len(heavy.scales.numbers) == 3 * KEYS
    assert heavy.scales.is_whole()


def test_small_events_are_claimed_in_full_again_after_large_ones(heavy: Heavy) -> None:
    heavy.harness.source["batch_size"] = 40
    heavy.write(0, 7)
    heavy.write(8, 399, 10)

    heavy.harness.work_to_the_end()

    assert len(heavy.scales.numbers) == 400
    assert max(map(len, heavy.scales.sizes)) == 40
    assert heavy.scales.is_whole(ordered=heavy.harness.source["ordering"] == "key")


def test_a_lane_that_the_bell_woke_does_not_sleep_over_what_it_left(leased: Harness) -> None:
    leased.conn.execute(doorbell_ddl(TableName("openoutbox_events"), 1).encode())
    leased.source |= {"batch_bytes": BOUND, "poll_interval": LONG_POLL, "doorbell": True}
    scales = Scales()
    leased.brokers["broker"] = scales
    with leased.working() as lane:
        wait_for(lambda: any(_sleeps(loop) for session in lane.sessions for loop in session.loops))
        Heavy(leased, "openoutbox", scales).write(0, EVENTS - 1)
        wait_for(lambda: len(scales.numbers) == EVENTS, timeout=20)


def _sleeps(loop: SourceLoop) -> bool:
    return isinstance(loop.waker, Doorbell) and loop.waker._asleep


def test_headers_count_as_well(leased: Harness) -> None:
    leased.source |= {"batch_bytes": 256 * 1024, "poll_interval": LONG_POLL}
    scales = Scales()
    leased.brokers["broker"] = scales
    for number in range(EVENTS):
        leased.enqueue(str(number), key=f"k{number % KEYS}", headers={"trace": "x" * 60_000})

    leased.work_to_the_end()

    assert all(sum(batch[:-1]) < 256 * 1024 for batch in scales.sizes), scales.sizes
    assert len(scales.numbers) == EVENTS
    assert scales.is_whole()


def test_heads_that_are_due_are_claimed_no_more_than_a_batch_at_a_time(leased: Harness) -> None:
    leased.source["batch_size"] = 10
    broker = leased.broker
    keys = [f"k{number}" for number in range(500)]
    for key in keys:
        leased.enqueue(f"{key} first", f"{key} second", key=key)
    broker.answers = {f"{key} first": [Retry("not yet")] for key in keys}

    leased.work(lambda: not leased.waiting(), timeout=60)

    assert max(map(len, broker.batches)) <= 10
    assert len(broker.delivered()) == 2 * len(keys)
    assert all(broker.arrived[f"{key} first"] < broker.arrived[f"{key} second"] for key in keys)
