"""Faults that decide between once and twice, one at a time, on a real broker."""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from outspark.config.inbox import Strategy
from outspark.inbox.lane import InboxLaneSpec
from tests.databases import Database
from tests.history.inbox.brokers import Broker
from tests.history.inbox.checker import check
from tests.history.inbox.drafts import Behaviour, Draft, uuid7_of
from tests.history.inbox.harness import Harness, open_harness

pytestmark = pytest.mark.faults

ON_EACH_BROKER = [
    pytest.param("nats_broker", marks=pytest.mark.needs("nats")),
    pytest.param("kafka_broker", marks=pytest.mark.needs("kafka")),
]


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Broker:
    broker: Broker = request.getfixturevalue(request.param)
    return broker


def some(count: int = 9, first: int = 0) -> list[Draft]:
    return [Draft(f"m{n}", key=f"k{n % 3}", id=uuid7_of(n)) for n in range(first, first + count)]


def polls(harness: Harness) -> Counter[tuple[str, str]]:
    return Counter((entry.name, entry.group) for entry in harness.did("polled"))


@pytest.mark.parametrize("broker", ON_EACH_BROKER, indirect=True)
@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_a_kill_between_the_databases_commit_and_the_brokers(
    broker: Broker, partitioned: bool, database: Database, tmp_path: Path
) -> None:
    with open_harness(
        database, tmp_path, broker, partitioned=partitioned, once="die before commit"
    ) as harness:
        harness.publish(*some())
        harness.finish()

        died = harness.did("died")
        assert died
        assert all(polls(harness)[entry.name, entry.group] > 1 for entry in died)
        assert check(harness.history()) == []


@pytest.mark.needs("nats")
@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_two_groups_with_one_idempotency_key(
    partitioned: bool, nats_broker: Broker, database: Database, tmp_path: Path
) -> None:
    first, second = (Draft(f"twin{n}", id=f"order-{n}", idempotency_key="paid-7") for n in (1, 2))
    with open_harness(database, tmp_path, nats_broker, partitioned=partitioned) as harness:
        harness.publish(first)
        harness.publish(second, *some())
        harness.finish()

        history = harness.history()
        assert check(history) == []
        billed = Counter(effect.group for effect in history.effects if effect.name.startswith("twin"))
        assert billed == dict.fromkeys(harness.groups, 1)


@pytest.mark.needs("nats")
@pytest.mark.parametrize("ago", [timedelta(days=400), timedelta(days=-400)], ids=["long ago", "far ahead"])
def test_a_time_that_no_partition_holds(
    ago: timedelta, nats_broker: Broker, database: Database, tmp_path: Path
) -> None:
    stray = Draft("stray", Behaviour.STRAY, id=uuid7_of(1, ago))
    with open_harness(database, tmp_path, nats_broker, partitioned=True) as harness:
        harness.publish(*some(4), stray, *some(4, first=4))
        harness.wait_for(lambda: harness.ask("SELECT 1 FROM {table} WHERE status = 'failed'"))
        harness.publish(stray)
        harness.finish()

        assert check(harness.history()) == []
        [(error,)] = harness.ask("SELECT DISTINCT last_error FROM {table} WHERE status = 'failed'")
        assert error.startswith("no partition covers")


@pytest.mark.needs("kafka")
@pytest.mark.parametrize("strategy", [Strategy.EXACTLY_ONCE, Strategy.AT_LEAST_ONCE_ON_SUCCESS])
def test_a_rebalance_while_a_batch_is_in_flight(
    strategy: Strategy, kafka_broker: Broker, database: Database, tmp_path: Path
) -> None:
    """A batch is kept and not acknowledged when a second member of the group comes in and takes some partitions."""
    from tests.history.inbox.kafka_broker import KafkaBroker

    assert isinstance(kafka_broker, KafkaBroker)
    with open_harness(
        database, tmp_path, kafka_broker, strategy, inboxes=["billing"], consumers=2, workers=1
    ) as harness:
        newcomer = _without_taker(harness, number=1)
        harness.conduct.hold.touch()
        harness.publish(*some(30))
        harness.wait_for(lambda: harness.did("held"), what="a batch in flight")
        harness.host.specs = [*harness.host.specs, newcomer]
        harness.wait_for(lambda: kafka_broker.members(harness.groups[0]) == 2, what="a second member")
        harness.conduct.hold.unlink()
        harness.publish(*some(30, first=30))
        harness.finish()

        assert check(harness.history()) == []


@pytest.mark.needs("kafka")
def test_a_kill_while_partitions_are_handed_over(
    kafka_broker: Broker, database: Database, tmp_path: Path
) -> None:
    """Who dies of it is back before Kafka misses it, and no partition is left without an owner."""
    from tests.history.inbox.kafka_broker import KafkaBroker

    assert isinstance(kafka_broker, KafkaBroker)
    with open_harness(
        database, tmp_path, kafka_broker, inboxes=["billing"], consumers=2, workers=1, die_on_revoke=True
    ) as harness:
        newcomer = _without_taker(harness, number=1)
        harness.publish(*some(9))
        harness.wait_for(lambda: len(harness.did("acknowledged")) == 9, what="the first messages")
        harness.host.specs = [*harness.host.specs, newcomer]
        harness.wait_for(lambda: harness.host.killed, what="a revocation")
        harness.wait_for(lambda: kafka_broker.members(harness.groups[0]) == 2, what="a second member")
        harness.publish(*some(30, first=30))
        harness.finish()

        assert check(harness.history()) == []


@pytest.mark.needs("kafka")
@pytest.mark.long
def test_a_member_that_wakes_up_after_its_partitions_were_taken(
    kafka_broker: Broker, database: Database, tmp_path: Path
) -> None:
    """Stopped with a batch in flight for longer than its session lives; what it says then counts for nothing."""
    with open_harness(
        database, tmp_path, kafka_broker, inboxes=["billing"], consumers=2, workers=1
    ) as harness:
        firsts = itertools.count(0, 3)

        def both_poll() -> bool:
            harness.publish(*some(3, first=next(firsts)))
            return len({entry.process for entry in harness.did("polled")}) == 2

        harness.wait_for(both_poll, timeout=60, what="two members")
        sleeper = harness.host.specs[0]
        harness.conduct.hold.touch()
        harness.publish(*some(30, first=100_000))
        harness.wait_for(lambda: _is_held(harness, sleeper), what="a batch in flight")
        harness.host.send(sleeper.lane, signal.SIGSTOP)
        try:
            harness.conduct.hold.unlink()
            harness.wait_for(
                lambda: kafka_broker.drained(harness.topic, harness.groups), timeout=60, what="a takeover"
            )
        finally:
            harness.host.send(sleeper.lane, signal.SIGCONT)
        harness.publish(*some(9, first=200_000))
        harness.finish()

        assert check(harness.history()) == []


def _without_taker(harness: Harness, number: int) -> InboxLaneSpec:
    """Leave one consumer out for now."""
    [left_out] = [one for one in harness.host.specs if one.task == "consume" and one.number == number]
    harness.host.specs = [one for one in harness.host.specs if one is not left_out]
    return left_out


def _is_held(harness: Harness, consumer: InboxLaneSpec) -> bool:
    name = f"{consumer.name}.{consumer.task}.{consumer.number}."
    return any(entry.process.startswith(name) for entry in harness.did("held"))
