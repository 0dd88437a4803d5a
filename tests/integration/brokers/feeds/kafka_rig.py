"""What the tests of the Kafka feed share: a topic of its own per test, filled by the plain client."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from outspark.brokers import Feed, open_feed
from outspark.config.inbox import FeedSettings
from outspark.tools.servers.kafka import Kafka
from tests.integration.brokers.kafka_rig import TIMEOUT, create_topics

_SILENT = {"log_level": 0}


class KafkaFeedRig:
    """The options carry a password that the listener does not ask for. Groups are this test's own."""

    secret = "s3cr3t-pw"

    def __init__(self, server: Kafka, partitions: int = 1) -> None:
        self.server = server
        self.id = uuid.uuid4().hex
        self.topic = f"orders.{self.id}"
        self.address = server.address
        self.repeats_in_order = True
        self._feeds: list[Feed] = []
        self.create(self.topic, partitions)

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        properties = {name.replace("_", "."): value for name, value in config.items()}
        create_topics(self.server, [NewTopic(topic, num_partitions=partitions, config=properties)])

    def group(self, name: str) -> str:
        return f"{name}.{self.id}"

    def open(
        self,
        group: str = "billing",
        member: str = "lane-0",
        *,
        url: str | None = None,
        topics: Sequence[str] = (),
        **options: Any,
    ) -> Feed:
        given = {"sasl.password": self.secret, "fetch.wait.max.ms": 50, **options}
        settings = {"type": "kafka", "url": url or self.server.url, "topics": topics or (self.topic,)}
        feed = open_feed(
            FeedSettings.model_validate({**settings, "options": given}), self.group(group), member
        )
        self._feeds.append(feed)
        return feed

    def open_dead(self) -> Feed:
        self.address = "127.0.0.1:1"
        return self.open(url=f"kafka://{self.address}")

    def send(
        self,
        *bodies: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        topic: str | None = None,
        partition: int = 0,
        **more: Any,
    ) -> None:
        producer = Producer({"bootstrap.servers": self.server.address, "linger.ms": 0, **_SILENT})
        failures: list[KafkaError] = []

        def report(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                failures.append(error)

        for body in bodies:
            given: Any = list(headers)
            producer.produce(
                topic or self.topic, body, partition=partition, headers=given, on_delivery=report, **more
            )
        assert producer.flush(TIMEOUT) == 0
        assert failures == []

    def committed(self, group: str = "billing", partitions: Sequence[int] = (0,)) -> list[int]:
        """Offsets of a group; negative where it has none."""
        consumer = Consumer(
            {"bootstrap.servers": self.server.address, "group.id": self.group(group), **_SILENT}
        )
        try:
            asked = [TopicPartition(self.topic, partition) for partition in partitions]
            return [answer.offset for answer in consumer.committed(asked, timeout=TIMEOUT)]
        finally:
            consumer.close()

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.server.kill()

    def close(self) -> None:
        for feed in self._feeds:
            feed.close()
