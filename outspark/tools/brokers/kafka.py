"""Kafka: topics of a few partitions, counted by their offsets and read by a consumer group.

Kafka keeps the order within a partition, and the order of a key only within one topic.
"""

from __future__ import annotations

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewTopic

from outspark.brokers.kafka.wire import EVENT_ID
from outspark.tools.brokers.broker import Broker
from outspark.tools.brokers.consumer import TIMEOUT, Consumer, PollingConsumer, Take
from outspark.tools.servers.kafka import Kafka
from outspark.tools.servers.kafka_jars import class_path

PARTITIONS = 4
_POLL = 0.2


class KafkaBroker(Broker):
    name = "kafka"
    title = "Kafka"
    has_feed = True

    def __init__(self) -> None:
        super().__init__(Kafka(), class_path)

    @property
    def address(self) -> str:
        return self.url.partition("://")[2]

    def create(self, topic: str, events: str | None = None) -> None:
        admin = self._admin()
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)], request_timeout=TIMEOUT)[topic].result()

    def count(self, topic: str) -> int:
        # A consumer's client could tell this too, but beside a poll its question was seen to hang for minutes.
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(topic, number): latest for number in range(PARTITIONS)}
        admin = self._admin()
        ends = admin.list_offsets(wanted, request_timeout=TIMEOUT).values()
        return sum(end.result().offset for end in ends)

    def open_consumer(self, topic: str, events: str, take: Take) -> Consumer:
        self.create(topic)
        return KafkaConsumer(self, topic, take)

    def describe(self, topic: str, events: str) -> str:
        return f"topic {topic} ({PARTITIONS} partitions)"

    def _admin(self) -> AdminClient:
        """For one question. The caller holds the client until the answer has come. The client must be gone before
        the server, and logs warnings only, because it would complain on stderr."""
        return AdminClient({"bootstrap.servers": self.address, "log_level": 4})


class KafkaConsumer(PollingConsumer):
    def __init__(self, broker: KafkaBroker, topic: str, take: Take) -> None:
        super().__init__(broker, topic, take)
        self._client = Client(
            {
                "bootstrap.servers": broker.address,
                "group.id": "counter",
                "auto.offset.reset": "earliest",
                "enable.auto.offset.store": False,  # an offset is committed once its message was counted
            }
        )
        self._client.subscribe([topic])
        self._start()

    def close(self) -> None:
        super().close()
        self._client.close()

    def _poll(self) -> None:
        message = self._client.poll(_POLL)
        if message is None:
            return
        error = message.error()
        if error is not None:
            raise KafkaException(error)
        headers = dict(message.headers() or [])
        self._take(_text(headers.get(EVENT_ID)), _text(message.key()), message.value() or b"")
        self._client.store_offsets(message)


def _text(value: bytes | str | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
