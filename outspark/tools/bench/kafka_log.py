"""A topic of Kafka as a backlog: written invisibly, revealed in one instant, and followed by the offsets of a group.

The topic is written in a transaction, and a consumer that reads committed messages sees nothing before its end.
"""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from outspark.errors import OutsparkError
from outspark.inbox import Received
from outspark.tools.brokers import Broker

TIMEOUT = 60.0
# A coordinator that is still loading is not worth a log line.
_QUIET = {"log_level": 3}


class KafkaLog:
    def __init__(self, broker: Broker, group: str) -> None:
        self.topic = broker.fresh_topic()
        self._group = group
        self._ends: dict[int, int] = {}
        """Partition -> the offset after its last message."""
        servers: dict[str, str | int | float | bool] = {
            "bootstrap.servers": broker.url.partition("://")[2],
            **_QUIET,
        }
        self._admin = AdminClient(servers)
        self._producer = Producer(
            {
                **servers,
                "transactional.id": f"bench-{self.topic}",
                "transaction.timeout.ms": 900_000,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1_000_000,
                "linger.ms": 20,
            }
        )
        self._producer.init_transactions(TIMEOUT)

    def write(self, messages: Iterable[Received]) -> None:
        """Consumers see the messages after `reveal` only."""
        self._producer.begin_transaction()
        for message in messages:
            self._produce(message)
        if self._producer.flush(10 * TIMEOUT):
            raise OutsparkError(f"Kafka did not take all messages for {self.topic} in time")

    def reveal(self) -> None:
        self._producer.commit_transaction(TIMEOUT)

    def is_consumed(self) -> bool:
        """Whether the group has committed every offset."""
        request = [ConsumerGroupTopicPartitions(self._group)]
        answers = self._admin.list_consumer_group_offsets(request, request_timeout=TIMEOUT)
        try:
            offsets = answers[self._group].result().topic_partitions or ()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
                return False
            raise
        committed = {one.partition: one.offset for one in offsets if one.topic == self.topic}
        return all(committed.get(partition, -1) >= end for partition, end in self._ends.items())

    def close(self) -> None:
        """Before the broker stops: the clients would log that they lost it."""
        del self._producer, self._admin

    def _produce(self, message: Received) -> None:
        while True:
            try:
                self._producer.produce(
                    self.topic,
                    message.body,
                    message.key,
                    headers=list(message.headers),
                    on_delivery=self._delivered,
                )
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self._ends[partition] = max(self._ends.get(partition, 0), offset + 1)
