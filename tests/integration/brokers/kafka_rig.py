"""What the tests of the Kafka publisher share: one broker, a topic of its own per test, read by the plain client."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka import Message as Record
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from outspark.brokers import Publisher
from outspark.event import Message
from outspark.outcome import Dead, Outcome, Retry
from outspark.tools.servers.kafka import Kafka
from tests.integration.brokers.contract import Received, open_destination
from tests.waiting import wait_for

TIMEOUT = 20.0
EVENT_ID = "X-Event-ID"
# What the clients of the tests say on stderr must not be taken for words of the publisher's.
_SILENT = {"log_level": 0}
USERS = {"relay": "r1ght-pw", "mute": "m-pw"}


@cache
def shared_server() -> Kafka:
    """Started at first use and stopped with the process, because a broker takes seconds: do not stop it."""
    return Kafka(users=USERS, quick=True).start()


class KafkaRig:
    """A topic of its own on a server. The options carry a password that the listener does not ask for."""

    secret = "s3cr3t-pw"
    max_payload = 1_000_000

    def __init__(self, server: Kafka) -> None:
        self.server = server
        self.topic = f"order.created.{uuid.uuid4().hex}"
        self._publishers: list[Publisher] = []
        self.create_topic(self.topic)

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        properties = {key.replace("_", "."): value for key, value in config.items()}
        create_topics(self.server, [NewTopic(name, num_partitions=partitions, config=properties)])

    def open(self, **options: Any) -> Publisher:
        return self.open_at(self.server.url, **{"sasl.password": self.secret, **options})

    def open_at(self, url: str, **options: Any) -> Publisher:
        publisher = open_destination("kafka", url=url, options=options)
        self._publishers.append(publisher)
        return publisher

    def message(self, payload: bytes = b"{}", key: str | None = "k", topic: str | None = None) -> Message:
        return Message(str(uuid.uuid4()), topic or self.topic, key, payload, {}, key)

    def read(self, topic: str | None = None) -> list[Received]:
        """Partition by partition."""
        return [_received(record) for record in records(self.server, topic or self.topic)]

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.server.kill()

    def close(self) -> None:
        for publisher in self._publishers:
            publisher.close()


def create_topics(server: Kafka, topics: Sequence[NewTopic]) -> None:
    client = admin(server)  # its answers end with it
    for created in client.create_topics(list(topics), operation_timeout=TIMEOUT).values():
        created.result(TIMEOUT)
    names = {topic.topic for topic in topics}
    wait_for(lambda: names <= topic_names(server, client), timeout=TIMEOUT, what="the new topics")


def delete_topic(server: Kafka, name: str) -> None:
    client = admin(server)
    client.delete_topics([name], operation_timeout=TIMEOUT)[name].result(TIMEOUT)


def admin(server: Kafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.address, **_SILENT})


def topic_names(server: Kafka, client: AdminClient | None = None) -> set[str]:
    return set((client or admin(server)).list_topics(timeout=TIMEOUT).topics)


@contextmanager
def open_consumer(server: Kafka) -> Iterator[Consumer]:
    config = {"bootstrap.servers": server.address, "group.id": "rig", "enable.partition.eof": True}
    with closing(Consumer({**config, **_SILENT, "fetch.wait.max.ms": 10})) as consumer:
        yield consumer


def records(server: Kafka, topic: str) -> list[Record]:
    with open_consumer(server) as consumer:
        partitions = consumer.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions
        return [record for number in sorted(partitions) for record in _read(consumer, topic, number)]


def _read(consumer: Consumer, topic: str, partition: int) -> Iterator[Record]:
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    while True:
        record = consumer.poll(TIMEOUT)
        assert record is not None, f"Kafka did not answer within {TIMEOUT:g} s"
        error = record.error()
        if error is None:
            yield record
        elif error.code() == KafkaError._PARTITION_EOF:
            return
        else:
            raise AssertionError(f"Kafka cannot be read: {error}")


def _received(record: Record) -> Received:
    headers = {name: _text(value) for name, value in dict(record.headers() or []).items()}
    key = record.key()
    topic, value = record.topic(), record.value()
    assert topic is not None
    assert value is not None, "a payload, an empty one too, must not become a tombstone"
    return Received(headers.pop(EVENT_ID), topic, None if key is None else key.decode(), value, headers)


def _text(value: bytes | str | None) -> str:
    assert isinstance(value, bytes)
    return value.decode()


def error_of(outcome: Outcome) -> str:
    assert isinstance(outcome, Retry | Dead), outcome
    return outcome.error


def sasl(user: str, password: str | None = None) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password or USERS[user],
    }


def acl(user: str, kind: ResourceType, name: str, operation: AclOperation, allow: bool = False) -> AclBinding:
    permission = AclPermissionType.ALLOW if allow else AclPermissionType.DENY
    return AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, permission)


@contextmanager
def acls(rig: KafkaRig, *bindings: AclBinding) -> Iterator[None]:
    """A topic with any of them is closed to whoever has none. They take effect a moment later."""
    client = admin(rig.server)
    for made in client.create_acls(list(bindings)).values():
        made.result(TIMEOUT)
    try:
        yield
    finally:
        for removed in client.delete_acls([_filter(binding) for binding in bindings]).values():
            removed.result(TIMEOUT)


def _filter(acl: AclBinding) -> AclBindingFilter:
    where = (acl.restype, acl.name, acl.resource_pattern_type)
    return AclBindingFilter(*where, acl.principal, acl.host, acl.operation, acl.permission_type)
