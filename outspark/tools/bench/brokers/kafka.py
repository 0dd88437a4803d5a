"""Kafka for the bench: topics of a few partitions, counted by their offsets."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from outspark.tools.bench.brokers.broker import Broker
from outspark.tools.servers.kafka import Kafka

PARTITIONS = 4
TIMEOUT = 30.0


class KafkaBroker(Broker):
    name = "kafka"
    title = "Kafka"

    def __init__(self) -> None:
        self._kafka = Kafka()
        super().__init__(self._kafka)

    @property
    def url(self) -> str:
        return self._kafka.url

    def count(self, topic: str) -> int:
        consumer = Consumer({"bootstrap.servers": self._kafka.address, "group.id": "bench"})
        try:
            return sum(_messages(consumer, TopicPartition(topic, number)) for number in range(PARTITIONS))
        finally:
            consumer.close()

    def _create(self, topic: str) -> None:
        # A warning and worse: it would say goodbye on stderr each time.
        admin = AdminClient({"bootstrap.servers": self._kafka.address, "log_level": 4})
        for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
            created.result(TIMEOUT)


def _messages(consumer: Consumer, partition: TopicPartition) -> int:
    low, high = consumer.get_watermark_offsets(partition, timeout=TIMEOUT)
    return int(high) - int(low)
