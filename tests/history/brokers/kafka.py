"""Kafka: a topic with one partition. It acknowledges what the page cache has, which survives a kill of the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from outspark.tools.servers.kafka import Kafka
from tests.history.brokers.served import ServedBroker, address
from tests.history.passing import SEND_HEADER
from tests.history.publisher import Address

_TIMEOUT = 20.0
_FROM_THE_START = 0


class KafkaBroker(ServedBroker[Kafka]):
    def __init__(self) -> None:
        super().__init__(Kafka())

    def open_topic(self, topic: str) -> Address:
        admin = AdminClient({"bootstrap.servers": self.server.address})
        admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(_TIMEOUT)
        return address("kafka", topic, url=self.server.url)

    def arrivals(self, topic: str) -> list[str]:
        return [_send(message) for message in self._read(topic)]

    def records(self, topic: str) -> list[tuple[bytes | None, bytes]]:
        """Key and body of everything in the topic, in its order."""
        return [(message.key(), message.value() or b"") for message in self._read(topic)]

    def _read(self, topic: str) -> list[Message]:
        with closing(
            Consumer(
                {
                    "bootstrap.servers": self.server.address,
                    "group.id": "history",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                }
            )
        ) as consumer:
            consumer.assign([TopicPartition(topic, 0, _FROM_THE_START)])
            return list(_read_to_the_end(consumer))


def _read_to_the_end(consumer: Consumer) -> Iterator[Message]:
    while True:
        message = consumer.poll(_TIMEOUT)
        assert message is not None, f"Kafka did not answer within {_TIMEOUT:g} s"
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            return
        else:
            raise AssertionError(f"Kafka cannot be read: {error}")


def _send(message: Message) -> str:
    value = dict(message.headers() or [])[SEND_HEADER]
    assert isinstance(value, bytes)
    return value.decode()
