"""A lane between a jEAP outbox and a real Kafka: what arrives, and what each refusal becomes in the table."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from types import EllipsisType

import pytest
from confluent_kafka import Message as Record
from confluent_kafka.admin import AclOperation, ResourceType

from outspark.brokers import Publisher
from outspark.delivery.destination import Destination
from outspark.outcome import DELIVERED
from outspark.relay.lane import Lane
from tests.databases import Database
from tests.integration.brokers.kafka_rig import KafkaRig, acl, acls, records, sasl, shared_server
from tests.integration.relay.harness import close_harness
from tests.integration.relay.jeap_harness import JeapHarness, open_jeap_harness
from tests.integration.relay.test_jeap import B3, TRACE, TRACEPARENT
from tests.integration.relay.test_jeap_headers import STORED
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("kafka")

NO_CREATION = {"allow.auto.create.topics": False, "topic.metadata.propagation.max.ms": 500}
BINARY = bytes(range(256))


@pytest.fixture
def rig() -> Iterator[KafkaRig]:
    with closing(KafkaRig(shared_server())) as rig:
        yield rig


@pytest.fixture
def harness(database: Database) -> Iterator[JeapHarness]:
    harness = open_jeap_harness(database, "kafka")
    yield harness
    close_harness(harness)


def lane(harness: JeapHarness, publisher: Publisher) -> Lane:
    return Lane(harness.spec(), {"kafka": Destination("kafka", publisher, harness.timeout)})


def work(harness: JeapHarness, publisher: Publisher) -> None:
    harness.work_to_the_end(lane(harness, publisher))


def headers(record: Record) -> dict[str, bytes | str | None]:
    return dict(record.headers() or [])


def values(rig: KafkaRig, topic: str, key: bytes | EllipsisType | None = ...) -> list[bytes]:
    """In their order; of all keys, or of one."""
    found = [record for record in records(rig.server, topic) if key in (..., record.key())]
    return [record.value() or b"" for record in found]


def test_what_arrives(harness: JeapHarness, rig: KafkaRig) -> None:
    harness.source["jeap"] = {**harness.source["jeap"], "trace": "both"}
    harness.send("binary", key=BINARY, topic=rig.topic, message_id="one", **TRACE)
    harness.send("empty", key=b"", topic=rig.topic)
    harness.send("none", topic=rig.topic)
    harness.change("none", message=BINARY)

    work(harness, rig.open())

    found = {record.key(): record for record in records(rig.server, rig.topic)}
    assert found.keys() == {BINARY, b"", None}
    assert found[None].value() == BINARY
    trace = {"traceparent": TRACEPARENT.encode(), "b3": B3.encode()}
    assert headers(found[BINARY]) == {"X-Event-ID": b"one", **trace}
    assert headers(found[None]) == {"X-Event-ID": b"id of none"}


def test_stored_headers_arrive_first_and_as_they_are(harness: JeapHarness, rig: KafkaRig) -> None:
    harness.make_header_table()
    (with_headers,) = harness.send("with", key=b"k", topic=rig.topic, message_id="one", **TRACE)
    harness.store(with_headers, *STORED, ("X-Event-ID", b"theirs"))
    harness.send("without", key=b"k", topic=rig.topic, message_id="two")

    work(harness, rig.open())

    found = {record.value(): record.headers() for record in records(rig.server, rig.topic)}
    theirs = [*STORED, ("X-Event-ID", b"theirs")]
    assert found == {
        b"with": [*theirs, ("traceparent", TRACEPARENT.encode()), ("X-Event-ID", b"one")],
        b"without": [("X-Event-ID", b"two")],
    }


def test_order_by_key_and_without_one_by_topic(harness: JeapHarness, rig: KafkaRig) -> None:
    """Keys that are the same text in no encoding, and messages without a key, each in a topic of its own."""
    topics = [rig.topic, f"{rig.topic}.second"]
    rig.create_topic(topics[1])
    keys = [b"\xff", b"\xfe", b"\xc3\xbf", None]
    for number in range(120):
        harness.send(f"{number:03}", key=keys[number % 4], topic=topics[number % 8 // 4])

    work(harness, rig.open())

    for topic in topics:
        for key in keys:
            numbers = values(rig, topic, key)
            assert numbers == sorted(numbers)
            assert len(numbers) == 15


def test_each_refusal_has_its_reason_and_the_others_go_on(harness: JeapHarness, rig: KafkaRig) -> None:
    """One batch with everything that Kafka can refuse."""
    small, secret = f"{rig.topic}.small", f"{rig.topic}.secret"
    rig.create_topic(small, max_message_bytes="20000")
    rig.create_topic(secret)
    publisher = rig.open_at(rig.server.sasl_url, **sasl("relay"), **NO_CREATION)
    with acls(rig, acl("relay", ResourceType.TOPIC, secret, AclOperation.WRITE)):
        wait_for(lambda: publisher.publish([rig.message(topic=secret)], 5.0) != [DELIVERED], what="the ACL")
        harness.send("first", key=b"k", topic=rig.topic)
        harness.send("x" * 30_000, key=b"k", topic=small)
        harness.send("y" * 2_000_000, key=b"k", topic=rig.topic)
        harness.send("missing", key=b"k", topic=f"{rig.topic}.missing")
        harness.send("impossible", key=b"k", topic="no topic at all")
        harness.send("secret", key=b"s", topic=secret)
        harness.send("secret too", topic=secret)
        harness.send("last", key=b"k", topic=rig.topic)
        harness.send("other", key=b"other", topic=rig.topic)

        work(harness, publisher)

    assert harness.states() == {
        "first": "sent",
        "x" * 30_000: "MESSAGE_TOO_LARGE",
        "y" * 2_000_000: "MESSAGE_TOO_LARGE",
        "missing": "INVALID_TOPIC",
        "impossible": "INVALID_TOPIC",
        "secret": "UNAUTHORIZED_ON_TOPIC",
        "secret too": "UNAUTHORIZED_ON_TOPIC",
        "last": "sent",
        "other": "sent",
    }
    arrived = values(rig, rig.topic)
    assert sorted(arrived) == [b"first", b"last", b"other"]
    assert arrived.index(b"first") < arrived.index(b"last")


def test_what_failed_goes_out_when_its_topic_is_there(harness: JeapHarness, rig: KafkaRig) -> None:
    missing = f"{rig.topic}.missing"
    publisher = rig.open(**NO_CREATION)
    harness.send("a", key=b"k", topic=missing)
    work(harness, publisher)
    assert harness.states() == {"a": "INVALID_TOPIC"}

    rig.create_topic(missing)
    harness.change("a", resend=True)
    work(harness, publisher)

    assert harness.states() == {"a": "sent"}
    assert values(rig, missing) == [b"a"]


def test_while_kafka_is_away_nothing_fails_and_all_is_sent_after(harness: JeapHarness, rig: KafkaRig) -> None:
    harness.timeout = 0.5
    publisher = rig.open()
    with harness.working(lane(harness, publisher)) as running:
        harness.send("first", key=b"k", topic=rig.topic)
        wait_for(lambda: not harness.waiting(), what="the first message")
        os.kill(rig.server.pid, signal.SIGSTOP)
        try:
            harness.send("a", "b", "c", key=b"k", topic=rig.topic)
            harness.send("d", topic=rig.topic)
            wait_for(lambda: running.destinations and running.destinations["kafka"].open, what="the outage")
            harness.send("e", key=b"other", topic=rig.topic)
            assert {state for name, state in harness.states().items() if name != "first"} == {"waiting"}
        finally:
            os.kill(rig.server.pid, signal.SIGCONT)
        wait_for(lambda: not harness.waiting(), timeout=30, what="the end of the outage")

    assert set(harness.states().values()) == {"sent"}
    # What was in flight may have come twice; nothing came before what stood in front of it.
    assert list(dict.fromkeys(values(rig, rig.topic, b"k"))) == [b"first", b"a", b"b", b"c"]
