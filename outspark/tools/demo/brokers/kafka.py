"""The demo on Kafka: one topic with several partitions, read by a consumer group, and by the inbox as another.

Kafka keeps the order within a partition, and the order of a key only within one topic. The shop's events have five
types, so a route brings them all to the same topic.
"""

from __future__ import annotations

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewTopic

from outspark.brokers.kafka.wire import EVENT_ID
from outspark.tools.demo.brokers.broker import Broker
from outspark.tools.demo.brokers.polling import Polling
from outspark.tools.demo.consumer import Consumer, Traffic
from outspark.tools.servers.kafka import Kafka
from outspark.tools.servers.kafka_jars import class_path

TOPIC = "orders"
PARTITIONS = 4
_TIMEOUT = 20.0
_POLL = 0.2

SETTINGS = """\
[destinations.kafka]
type = "kafka"
url = "{url}"

[[routes]]
topic = "{topic}"
"""
FEED = """\
type = "kafka"
url = "{url}"
topics = ["{topic}"]
"""


class KafkaBroker(Broker):
    name = "Kafka"
    place = f"topic {TOPIC} ({PARTITIONS} partitions)"
    has_feed = True

    def __init__(self) -> None:
        self._kafka = Kafka()
        super().__init__(self._kafka)

    def find_server(self) -> None:
        class_path()

    @property
    def url(self) -> str:
        return self._kafka.url

    @property
    def settings(self) -> str:
        return SETTINGS.format(url=self.url, topic=TOPIC)

    @property
    def feed(self) -> str:
        return FEED.format(url=self.url, topic=TOPIC)

    def open_consumer(self) -> Consumer:
        return KafkaConsumer(self._kafka.address)


class KafkaConsumer(Consumer):
    def __init__(self, servers: str) -> None:
        super().__init__()
        self._servers = servers
        _create_topic(servers)
        self._client = Client(
            {
                "bootstrap.servers": servers,
                "group.id": "counter",
                "auto.offset.reset": "earliest",
                "enable.auto.offset.store": False,  # an offset is committed once its message was taken
            }
        )
        self._client.subscribe([TOPIC])
        self._polling = Polling(self._poll)

    def traffic(self) -> Traffic:
        """Nothing is dropped: an idempotent producer is known by its own numbers, not by the ids of events."""
        self._polling.check()
        stored = _stored(self._servers)
        return Traffic(published=stored, stored=stored)

    def close(self) -> None:
        self._polling.stop()
        self._client.close()

    def _poll(self) -> None:
        message = self._client.poll(_POLL)
        if message is None:
            return
        error = message.error()
        if error is not None:
            raise KafkaException(error)
        headers = dict(message.headers() or [])
        self.take(_text(headers.get(EVENT_ID)), _text(message.key()), message.value() or b"")
        self._client.store_offsets(message)


def _create_topic(servers: str) -> None:
    topic = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    admin = _admin(servers)
    admin.create_topics([topic], request_timeout=_TIMEOUT)[TOPIC].result()


def _stored(servers: str) -> int:
    # The consumer's client could tell this too, but beside a poll its question was seen to hang for minutes.
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(TOPIC, number): latest for number in range(PARTITIONS)}
    admin = _admin(servers)
    ends = admin.list_offsets(wanted, request_timeout=_TIMEOUT).values()
    return sum(end.result().offset for end in ends)


def _admin(servers: str) -> AdminClient:
    """For one question. It must be held until the answer is there, and be gone before the server, as it would
    complain on stderr."""
    return AdminClient({"bootstrap.servers": servers})


def _text(value: bytes | str | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
