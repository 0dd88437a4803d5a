"""Kafka: a topic with some partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from outspark.tools.servers.kafka import Kafka
from tests.history.inbox.brokers import PARTITIONS, TIMEOUT, Broker
from tests.history.inbox.drafts import Draft


class KafkaBroker(Broker):
    def __init__(self, server: Kafka) -> None:
        self._server = server

    def open_topic(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self._server.address})
        admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS)])[topic].result(TIMEOUT)

    def feed(self, topic: str) -> dict[str, Any]:
        # The least that a broker allows: how long a member that is gone keeps its partitions.
        options = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500", "fetch.wait.max.ms": "20"}
        return {"type": "kafka", "url": self._server.url, "topics": [topic], "options": options}

    def publish(self, topic: str, drafts: Sequence[tuple[Draft, int]]) -> None:
        producer = Producer({"bootstrap.servers": self._server.address})
        for draft, partition in drafts:
            producer.produce(
                topic, draft.body, draft.key, partition=partition, headers=list(draft.headers.items())
            )
        assert producer.flush(TIMEOUT) == 0

    def drained(self, topic: str, groups: Sequence[str]) -> bool:
        return all(self._is_drained(topic, group) for group in groups)

    def members(self, group: str) -> int:
        admin = AdminClient({"bootstrap.servers": self._server.address})
        return len(admin.describe_consumer_groups([group])[group].result(TIMEOUT).members)

    def _is_drained(self, topic: str, group: str) -> bool:
        """Through a consumer that never joins the group."""
        consumer = Consumer({"bootstrap.servers": self._server.address, "group.id": group})
        try:
            partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            ends = [consumer.get_watermark_offsets(one, timeout=TIMEOUT)[1] for one in partitions]
            heard = [max(one.offset, 0) for one in consumer.committed(partitions, timeout=TIMEOUT)]
            return ends == heard
        finally:
            consumer.close()
