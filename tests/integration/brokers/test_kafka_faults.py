"""What brokers refuse, and how little of a batch that costs."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from random import Random

import pytest
from confluent_kafka.admin import AclOperation, NewTopic, ResourceType

from outspark.brokers import Publisher
from outspark.errors import DestinationDown, DestinationError
from outspark.event import Message
from outspark.outcome import DELIVERED, HELD, Dead, Outcome, Retry
from tests.integration.brokers.contract import (
    TIMEOUT,
    assert_all_delivered,
    assert_all_waiting,
    message,
    messages,
    received,
)
from tests.integration.brokers.kafka_rig import (
    KafkaRig,
    acl,
    acls,
    create_topics,
    delete_topic,
    error_of,
    sasl,
    shared_server,
)
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("kafka")

NO_CREATION = {"allow.auto.create.topics": False}


@pytest.fixture
def rig() -> Iterator[KafkaRig]:
    with closing(KafkaRig(shared_server())) as rig:
        yield rig


def kinds(outcomes: list[Outcome]) -> list[str]:
    return [type(outcome).__name__ for outcome in outcomes]


def test_a_missing_topic_among_many_costs_only_its_own_events(rig: KafkaRig) -> None:
    """It is held until it is clear that it does not just come into being; the others do not wait for that."""
    publisher = rig.open(**NO_CREATION, **{"topic.metadata.propagation.max.ms": 500})
    missing = f"{rig.topic}.missing"
    good = messages(rig, 10)
    batch = [*good[:5], rig.message(topic=missing, key="m"), *good[5:], rig.message(key="m")]
    first = publisher.publish(batch, TIMEOUT)
    assert kinds(first) == ["Delivered"] * 5 + ["Held"] + ["Delivered"] * 5 + ["Held"]
    outcomes = (
        wait_for(lambda: _final(publisher, [batch[5], batch[11]]), what="the verdict on the topic") or []
    )
    assert outcomes == [Retry.of_topic("missing", f"topic {missing!r} does not exist; create it"), HELD]
    assert rig.read() == [received(sent) for sent in good]


def _final(publisher: Publisher, batch: list[Message]) -> list[Outcome] | None:
    outcomes = publisher.publish(batch, TIMEOUT)
    return None if outcomes[0] is HELD else outcomes


def test_a_missing_topic_is_waited_for_once_and_found_when_it_is_created(rig: KafkaRig) -> None:
    publisher = rig.open(**NO_CREATION, **{"topic.metadata.propagation.max.ms": 1500})
    missing = f"{rig.topic}.missing"
    started = time.monotonic()
    assert kinds(publisher.publish([rig.message(topic=missing)], TIMEOUT)) == ["Retry"]
    first = time.monotonic() - started
    assert kinds(publisher.publish([rig.message(topic=missing)], TIMEOUT)) == ["Retry"]
    assert time.monotonic() - started - first < first / 2
    rig.create_topic(missing)
    assert_all_delivered(publisher.publish([rig.message(topic=missing)], TIMEOUT), 1)


def test_a_topic_that_is_deleted_under_way_costs_only_its_own_events(rig: KafkaRig) -> None:
    publisher = rig.open(**NO_CREATION, **{"topic.metadata.propagation.max.ms": 500})
    gone = f"{rig.topic}.gone"
    rig.create_topic(gone)
    assert_all_delivered(publisher.publish([rig.message(), rig.message(topic=gone)], TIMEOUT), 2)
    delete_topic(rig.server, gone)
    lost = rig.message(topic=gone, key="b")
    outcomes = publisher.publish([rig.message(key="a"), lost], TIMEOUT)
    assert kinds(outcomes) == ["Delivered", "Held"]
    [outcome] = wait_for(lambda: _final(publisher, [lost]), what="the verdict on the topic") or []
    assert "does not exist" in error_of(outcome)


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "a/b", "ä", "x" * 250, "a\0b", "a\ud800"])
def test_a_topic_that_kafka_cannot_have_is_dead_and_not_sent(rig: KafkaRig, topic: str) -> None:
    bad = Message("id", topic, None, b"{}", {})
    outcomes = rig.open().publish([message(rig), bad, message(rig)], TIMEOUT)
    assert kinds(outcomes) == ["Delivered", "Dead", "Delivered"]
    assert "is not a Kafka topic" in error_of(outcomes[1])


def test_many_topics_at_once(rig: KafkaRig) -> None:
    names = [f"{rig.topic}.{number}" for number in range(300)]
    create_topics(rig.server, [NewTopic(name, num_partitions=1) for name in names])
    publisher = rig.open(**NO_CREATION)
    batch = [
        rig.message(b"%d" % number, key=f"k{number % 20}", topic=name) for number, name in enumerate(names)
    ]
    assert_all_delivered(publisher.publish(batch, TIMEOUT), 300)
    assert_all_delivered(publisher.publish(batch, TIMEOUT), 300)
    assert [each.payload for each in rig.read(names[-1])] == [b"299", b"299"]


def test_topics_that_there_was_no_time_to_ask_for_come_next_time(rig: KafkaRig) -> None:
    """A batch of ever so many new topics makes progress however short the time is."""
    names = [f"{rig.topic}.{number}" for number in range(15)]
    create_topics(rig.server, [NewTopic(name, num_partitions=1) for name in names])
    publisher = rig.open(**NO_CREATION)
    assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
    waiting = [rig.message(topic=name) for name in names]
    rounds = 0
    while waiting:
        outcomes = publisher.publish(waiting, 0.1)
        assert "Dead" not in kinds(outcomes)
        waiting = [sent for sent, outcome in zip(waiting, outcomes, strict=True) if outcome is not DELIVERED]
        rounds += 1
        assert rounds < 100
    assert all(rig.read(name) for name in names)


def test_small_messages_pass_where_the_topic_takes_less_than_a_whole_batch(rig: KafkaRig) -> None:
    """The broker refuses a batch of 100 kB as one, though each of its messages would fit."""
    topic = f"{rig.topic}.small"
    rig.create_topic(topic, max_message_bytes="20000")
    publisher = rig.open()
    batch = [rig.message(b"%04d" % n + b"x" * 1000, key=f"k{n % 7}", topic=topic) for n in range(100)]
    assert_all_delivered(publisher.publish(batch, TIMEOUT), 100)
    assert [each.id for each in rig.read(topic)] == [sent.id for sent in batch]


def test_a_message_over_the_topics_limit_among_small_ones_is_dead_alone(rig: KafkaRig) -> None:
    topic = f"{rig.topic}.small"
    rig.create_topic(topic, max_message_bytes="20000")
    batch = [rig.message(b"%04d" % n + b"x" * 1000, key=f"k{n}", topic=topic) for n in range(60)]
    batch[20] = rig.message(b"x" * 30_000, key="large", topic=topic)
    batch[40] = rig.message(b"behind it", key="large", topic=topic)
    outcomes = rig.open().publish(batch, TIMEOUT)
    assert [n for n, outcome in enumerate(outcomes) if outcome is not DELIVERED] == [20, 40]
    assert isinstance(outcomes[20], Dead)
    assert "MSG_SIZE_TOO_LARGE" in error_of(outcomes[20])
    assert outcomes[40] is HELD
    assert len(rig.read(topic)) == 58


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_refused_nothing_of_its_key_overtakes_it(rig: KafkaRig, seed: int) -> None:
    """Keys over two topics with several partitions each, and messages that only the broker finds too large."""
    random = Random(seed)
    topics = [f"{rig.topic}.{number}" for number in range(2)]
    for topic in topics:
        rig.create_topic(topic, partitions=3, max_message_bytes="6000")
    sizes = [
        random.choice([100, 500, 2000, 2000, 7000 if random.random() < 0.2 else 100]) for _ in range(300)
    ]
    batch = [
        rig.message(b"x" * size, key=f"k{random.randrange(60)}", topic=random.choice(topics))
        for size in sizes
    ]
    outcomes = rig.open().publish(batch, TIMEOUT)
    arrived = {each.id for topic in topics for each in rig.read(topic)}
    for key in {sent.key for sent in batch}:
        fates = [(sent, outcome) for sent, outcome in zip(batch, outcomes, strict=True) if sent.key == key]
        first = next((n for n, (sent, _) in enumerate(fates) if len(sent.payload) == 7000), len(fates))
        expected = ["Delivered"] * first + ["Dead", *["Held"] * len(fates)]
        assert kinds([outcome for _, outcome in fates]) == expected[: len(fates)]
        assert [sent.id for sent, _ in fates if sent.id in arrived] == [sent.id for sent, _ in fates[:first]]
    for topic in topics:
        order = {sent.id: harness for harness, sent in enumerate(batch)}
        read = rig.read(topic)
        for key in {each.key for each in read}:
            harnesses = [order[each.id] for each in read if each.key == key]
            assert harnesses == sorted(set(harnesses))


def test_a_record_that_a_compacted_topic_refuses_is_dead_alone(rig: KafkaRig) -> None:
    topic = f"{rig.topic}.compacted"
    rig.create_topic(topic, cleanup_policy="compact")
    batch = [rig.message(b"%d" % n, key=f"k{n}", topic=topic) for n in range(6)]
    batch[2] = rig.message(key=None, topic=topic)
    outcomes = rig.open().publish(batch, TIMEOUT)
    assert kinds(outcomes) == ["Delivered"] * 2 + ["Dead"] + ["Delivered"] * 3
    assert [each.payload for each in rig.read(topic)] == [b"0", b"1", b"3", b"4", b"5"]


def test_a_stalled_broker_is_given_up_and_what_was_not_sent_stays_unsent(rig: KafkaRig) -> None:
    publisher = rig.open()
    assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
    batch = messages(rig, 2000, size=20_000)  # 40 MB: all but the first pass are not even queued
    os.kill(rig.server.pid, signal.SIGSTOP)
    try:
        assert_all_waiting(publisher.publish(batch, 0.5), 2000)
    finally:
        os.kill(rig.server.pid, signal.SIGCONT)
    assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
    assert len(rig.read()) < 100
    assert_all_delivered(publisher.publish(batch[:200], TIMEOUT), 200)


def test_a_server_that_does_not_answer_is_given_up_in_time(rig: KafkaRig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        publisher = rig.open_at(f"kafka://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        assert_all_waiting(publisher.publish(messages(rig, 2), 1.0), 2)
        with pytest.raises(DestinationDown):
            publisher.check(0.5)
        assert time.monotonic() - started < 4


def test_a_cluster_that_refuses_connections_is_given_up_early(rig: KafkaRig) -> None:
    started = time.monotonic()
    [outcome] = rig.open_at("kafka://127.0.0.1:1").publish([message(rig)], TIMEOUT)
    assert time.monotonic() - started < TIMEOUT / 2
    assert_all_waiting([outcome], 1)
    assert "destination dest: Kafka at 127.0.0.1:1: " in error_of(outcome)
    assert "refused" in error_of(outcome)


def test_the_right_password(rig: KafkaRig) -> None:
    publisher = rig.open_at(rig.server.sasl_url, **sasl("relay"))
    publisher.check(TIMEOUT)
    assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)


def test_a_wrong_password_is_said_clearly_and_not_shown(rig: KafkaRig) -> None:
    publisher = rig.open_at(rig.server.sasl_url, **sasl("relay", "wr0ng-pw"))
    for attempt in (lambda: publisher.publish([message(rig)], TIMEOUT), lambda: publisher.check(TIMEOUT)):
        started = time.monotonic()
        with pytest.raises(DestinationError, match="Authentication failed") as refused:
            attempt()
        assert time.monotonic() - started < TIMEOUT / 2
        assert not isinstance(refused.value, DestinationDown)
        assert rig.server.sasl_url.removeprefix("kafka://") in str(refused.value)
        assert "wr0ng-pw" not in str(refused.value) + repr(refused.value)
        assert refused.value.__cause__ is None


@pytest.mark.parametrize("visible", [True, False], ids=["to be seen", "not even to be seen"])
def test_a_forbidden_topic_among_many_costs_only_its_own_events(rig: KafkaRig, visible: bool) -> None:
    secret = f"{rig.topic}.secret"
    rig.create_topic(secret)
    publisher = rig.open_at(rig.server.sasl_url, **sasl("relay"))
    publisher.check(TIMEOUT)
    with acls(
        rig,
        acl("relay", ResourceType.TOPIC, secret, AclOperation.WRITE),
        acl("relay", ResourceType.TOPIC, secret, AclOperation.DESCRIBE, allow=visible),
    ):
        outcomes = wait_for(lambda: _refused(publisher, rig, secret), what="the ACLs") or []
        error = f"not authorised to use topic {secret!r}; grant WRITE on it"
        assert outcomes == [DELIVERED, Retry.of_topic("forbidden", error), DELIVERED]
    wait_for(lambda: _refused(publisher, rig, secret) is None, what="the end of the ACLs")


def _refused(publisher: Publisher, rig: KafkaRig, secret: str) -> list[Outcome] | None:
    batch = [rig.message(key="a"), rig.message(topic=secret, key="b"), rig.message(key="c")]
    outcomes = publisher.publish(batch, TIMEOUT)
    return None if outcomes == [DELIVERED] * 3 else outcomes


def test_a_producer_that_failed_for_good_is_built_anew(rig: KafkaRig) -> None:
    """A user that may not write at all gets no producer id, which is fatal for an idempotent producer."""
    publisher = rig.open_at(rig.server.sasl_url, **sasl("mute"))
    with acls(
        rig,
        acl("mute", ResourceType.TOPIC, "*", AclOperation.WRITE),
        acl("mute", ResourceType.TOPIC, rig.topic, AclOperation.DESCRIBE, allow=True),
        acl("mute", ResourceType.BROKER, "kafka-cluster", AclOperation.IDEMPOTENT_WRITE),
    ):
        started = time.monotonic()
        outcomes = publisher.publish(messages(rig, 3), TIMEOUT)
        assert_all_waiting(outcomes, 3)
        assert "authorization failed" in error_of(outcomes[0]).lower()
        assert time.monotonic() - started < TIMEOUT / 2
    wait_for(
        lambda: publisher.publish([message(rig)], TIMEOUT) == [DELIVERED],
        timeout=30,
        what="a producer that may write",
    )


def test_the_clients_log_is_for_debugging_only(rig: KafkaRig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        rig.open_at("kafka://127.0.0.1:1").publish([message(rig)], 1.0)
    assert any("127.0.0.1:1" in record.getMessage() for record in caplog.records)
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
