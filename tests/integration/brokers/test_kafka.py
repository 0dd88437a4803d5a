"""The Kafka publisher against a real broker: the contract, the wire format, the order of keys, the settings."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from outspark.errors import SettingsError
from outspark.outcome import DELIVERED, HELD, Dead
from outspark.tools.servers.kafka import Kafka, java_command
from tests.integration.brokers.contract import (
    TIMEOUT,
    LimitedRig,
    Outages,
    PublisherContract,
    ReadBack,
    SizeLimit,
    assert_all_delivered,
    assert_all_waiting,
    message,
    messages,
    open_destination,
    received,
)
from tests.integration.brokers.kafka_rig import (
    KafkaRig,
    error_of,
    open_consumer,
    records,
    shared_server,
    topic_names,
)

pytestmark = pytest.mark.needs("kafka")


@pytest.fixture
def rig() -> Iterator[KafkaRig]:
    with closing(KafkaRig(shared_server())) as rig:
        yield rig


@pytest.fixture(scope="module")
def own_server() -> Iterator[Kafka]:
    with Kafka(quick=True) as server:
        yield server


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """The client complains neither in the log nor on stderr: outcomes tell all."""
    yield
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert "rdkafka" not in capfd.readouterr().err


class TestKafka(PublisherContract, ReadBack, SizeLimit):
    def test_keeps_order_by_itself(self, rig: KafkaRig) -> None:
        assert rig.open().keeps_order

    @pytest.mark.parametrize(
        "headers", [{"a\0b": "c"}, {"a\ud800": "c"}, {"a": "\ud800"}], ids=["nul", "name", "value"]
    )
    def test_only_the_message_with_a_bad_header_is_dead(
        self, rig: LimitedRig, headers: dict[str, str]
    ) -> None:
        good, bad = messages(rig, 2), message(rig, headers=headers)
        outcomes = rig.open().publish([good[0], bad, good[1]], TIMEOUT)
        assert [type(outcome) for outcome in outcomes] == [type(DELIVERED), Dead, type(DELIVERED)]
        assert "header" in error_of(outcomes[1])
        assert rig.read() == [received(sent) for sent in good]

    def test_carries_any_other_header(self, rig: KafkaRig) -> None:
        sent = message(rig, headers={"": "no name", "a b": "c\r\nd", "ä": "x\0y"})
        assert_all_delivered(rig.open().publish([sent], TIMEOUT), 1)
        assert rig.read() == [received(sent)]


class TestKafkaOutages(Outages):
    @pytest.fixture
    def rig(self, own_server: Kafka) -> Iterator[KafkaRig]:
        own_server.start()
        with closing(KafkaRig(own_server)) as rig:
            yield rig

    def test_killed_in_the_middle_of_a_batch(self, rig: KafkaRig) -> None:
        """40 MB go out in some forty passes; what is called delivered is there, and nothing else is missing."""
        publisher = rig.open()
        assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
        batch = messages(rig, 2000, size=20_000)
        with killed_after(rig, 100):
            outcomes = publisher.publish(batch, TIMEOUT)
        unsure = [sent for sent, outcome in zip(batch, outcomes, strict=True) if outcome is not DELIVERED]
        assert 0 < len(unsure) < 2000
        assert_all_waiting([outcome for outcome in outcomes if outcome is not DELIVERED], len(unsure))
        rig.start()
        assert_all_delivered(publisher.publish(unsure, TIMEOUT), len(unsure))
        arrived = [each.id for each in rig.read()][1:]
        assert set(arrived) == {sent.id for sent in batch}
        first = list(dict.fromkeys(arrived))
        assert first == [sent.id for sent in batch], "the order of what arrived first is that of the batch"


@contextmanager
def killed_after(rig: KafkaRig, count: int) -> Iterator[None]:
    """The broker dies once there are so many records in the topic."""
    with open_consumer(rig.server) as consumer:
        partition = TopicPartition(rig.topic, 0)
        consumer.get_watermark_offsets(partition, timeout=TIMEOUT)

        def kill() -> None:
            while consumer.get_watermark_offsets(partition, timeout=TIMEOUT)[1] < count:
                pass
            rig.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        yield
        killer.join()


def test_our_own_header_wins(rig: KafkaRig) -> None:
    sent = message(rig, headers={"X-Event-ID": "theirs", "a": "b"})
    assert_all_delivered(rig.open().publish([sent], TIMEOUT), 1)
    [arrived] = rig.read()
    assert (arrived.id, arrived.headers) == (sent.id, {"a": "b"})


def test_no_key_is_not_an_empty_key(rig: KafkaRig) -> None:
    rig.open().publish([rig.message(key=None), rig.message(key="")], TIMEOUT)
    assert [record.key() for record in records(rig.server, rig.topic)] == [None, b""]


def test_kafkas_own_console_consumer_shows_key_headers_and_body(rig: KafkaRig) -> None:
    sent = message(rig, b'{"total": 12}', key="order 42", headers={"traceparent": "00-ab-cd-01"})
    assert_all_delivered(rig.open().publish([sent], TIMEOUT), 1)
    arguments = ["--bootstrap-server", rig.server.address, "--topic", rig.topic, "--from-beginning"]
    arguments += ["--max-messages", "1", "--timeout-ms", "20000"]
    for name in ("print.headers", "print.key"):
        arguments += ["--property", f"{name}=true"]
    shown = subprocess.run(
        java_command("org.apache.kafka.tools.consumer.ConsoleConsumer", *arguments),
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.stdout.strip() == (
        f'traceparent:00-ab-cd-01,X-Event-ID:{sent.id}\torder 42\t{{"total": 12}}'
    )


def test_a_key_goes_where_the_java_clients_would_put_it(rig: KafkaRig) -> None:
    """Murmur2 of these keys over 7 partitions, as `org.apache.kafka.clients.producer` computes it."""
    topic = f"{rig.topic}.7"
    rig.create_topic(topic, partitions=7)
    keys = [f"order-{number}" for number in range(20)]
    assert_all_delivered(rig.open().publish([rig.message(key=key, topic=topic) for key in keys], TIMEOUT), 20)
    found = {(record.key() or b"").decode(): record.partition() for record in records(rig.server, topic)}
    assert found == {key: (_murmur2(key.encode()) & 0x7FFFFFFF) % 7 for key in keys}


def _murmur2(data: bytes) -> int:
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if tail := data[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def test_what_stands_behind_a_dead_event_of_its_key_is_held(rig: KafkaRig) -> None:
    batch = [
        rig.message(b"1", key="a"),
        rig.message(b"x" * (rig.max_payload + 1), key="a"),
        rig.message(b"2", key="b"),
        rig.message(b"3", key="a"),
        rig.message(b"4", key=None),
    ]
    outcomes = rig.open().publish(batch, TIMEOUT)
    kinds = [type(outcome).__name__ for outcome in outcomes]
    assert kinds == ["Delivered", "Dead", "Delivered", "Held", "Delivered"]
    assert [each.payload for each in rig.read()] == [b"1", b"2", b"4"]


def test_a_key_with_several_topics_keeps_its_order_across_them(rig: KafkaRig) -> None:
    """Its second topic is not sent to before the first has answered, and not at all if that failed."""
    other = f"{rig.topic}.other"
    rig.create_topic(other, max_message_bytes="2000")
    large = b"x" * 3000
    batch = [
        rig.message(b"1", key="a"),
        rig.message(large, key="a", topic=other),
        rig.message(b"2", key="a"),
        rig.message(b"3", key="b"),
        rig.message(b"4", key="b", topic=other),
        rig.message(b"5", key="b"),
    ]
    outcomes = rig.open().publish(batch, TIMEOUT)
    assert isinstance(outcomes[1], Dead)
    assert outcomes[2] is HELD
    assert [outcomes[index] for index in (0, 3, 4, 5)] == [DELIVERED] * 4
    assert [each.payload for each in rig.read()] == [b"1", b"3", b"5"]
    assert [each.payload for each in rig.read(other)] == [b"4"]


def test_a_batch_over_many_passes_keeps_the_order_of_every_key(rig: KafkaRig) -> None:
    topic = f"{rig.topic}.4"
    rig.create_topic(topic, partitions=4)
    batch = [rig.message(b"%06d" % n + b"x" * 2000, key=f"k{n % 50}", topic=topic) for n in range(3000)]
    assert_all_delivered(rig.open().publish(batch, TIMEOUT), 3000)
    arrived = rig.read(topic)
    for key in {sent.key for sent in batch}:
        assert [each.id for each in arrived if each.key == key] == [s.id for s in batch if s.key == key]


def test_a_small_queue_of_the_client_is_used_in_turns(rig: KafkaRig) -> None:
    publisher = rig.open(**{"queue.buffering.max.messages": 10})
    batch = messages(rig, 95)
    assert_all_delivered(publisher.publish(batch, TIMEOUT), 95)
    assert rig.read() == [received(sent) for sent in batch]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compression(rig: KafkaRig, codec: str) -> None:
    batch = messages(rig, 100)
    assert_all_delivered(rig.open(**{"compression.type": codec}).publish(batch, TIMEOUT), 100)
    assert rig.read() == [received(sent) for sent in batch]


def test_a_check_creates_no_topic(rig: KafkaRig) -> None:
    rig.open().check(TIMEOUT)
    assert "outspark.check" not in topic_names(rig.server)


def test_the_first_event_creates_its_topic_where_the_broker_allows_it(rig: KafkaRig) -> None:
    topic = f"{rig.topic}.new"
    started = time.monotonic()
    assert_all_delivered(rig.open().publish([rig.message(topic=topic)], TIMEOUT), 1)
    assert time.monotonic() - started < TIMEOUT / 2
    assert len(rig.read(topic)) == 1


def test_several_brokers_and_no_scheme(rig: KafkaRig) -> None:
    publisher = rig.open_at(f"127.0.0.1:1, {rig.server.address}")
    assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)


@pytest.mark.parametrize(
    "options",
    [{"sasl": {"mechanism": "PLAIN"}, "batch.size": 20_000}, {"acks": "all", "enable.idempotence": True}],
    ids=["tables as TOML makes of dots", "what is so anyway"],
)
def test_options_are_librdkafkas_own(rig: KafkaRig, options: dict[str, Any]) -> None:
    assert_all_delivered(rig.open(**options).publish(messages(rig, 100, size=1000), TIMEOUT), 100)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"lingr.ms": 5}, 'No such configuration property: "lingr.ms"'),
        ({"compression.type": "rar"}, 'Invalid value "rar" for configuration property "compression.'),
        ({"acks": 1}, "acks = '1' must be one of: all, -1; anything less loses events"),
        ({"request.required.acks": 0}, "request.required.acks = '0' must be one of: all, -1"),
        ({"enable.idempotence": False}, "enable.idempotence = 'false' must be one of: true"),
        ({"partitioner": "random"}, "partitioner = 'random' must be one of: murmur2_random"),
        ({"linger": {"ms": 5}}, "linger.ms cannot be set: a batch is sent immediately and as a whole"),
        ({"message.timeout.ms": 5}, "message.timeout.ms cannot be set: the destination's publish_timeout"),
        ({"bootstrap.servers": "s3cr3t"}, "bootstrap.servers cannot be set: the brokers are set in"),
        ({"transactional.id": "a"}, "transactional.id cannot be set"),
        ({"max.in.flight": 9}, "max.in.flight"),
        ({"client.id": ["a"]}, "client.id must be text, a number or a boolean"),
        ({"ssl.ca.location": "missing.pem", "security.protocol": "ssl"}, "ssl.ca.location"),
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "s3cr3t", "sasl.password": "s3cr3t"}, "***"),
    ],
)
def test_wrong_options_are_named_without_their_secrets(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError, match=r"^destinations\.dest\.options: ") as wrong:
        open_destination("kafka", url="kafka://127.0.0.1:1", options=options)
    assert complaint in str(wrong.value)
    assert "s3cr3t" not in str(wrong.value) + repr(wrong.value)
    assert wrong.value.__cause__ is None


@pytest.mark.parametrize("url", ["kafka://u:s3cr3t@host:9092", "", "kafka://", "a:1,,b:2", "host:port"])
def test_a_wrong_url_is_not_shown(url: str) -> None:
    with pytest.raises(SettingsError, match=r"^destinations\.dest\.url must be kafka://host:port") as wrong:
        open_destination("kafka", url=url)
    assert "s3cr3t" not in str(wrong.value)


def test_a_missing_client_gives_the_line_to_install_it() -> None:
    program = """
import sys
sys.modules["confluent_kafka"] = None
from outspark.brokers import open_publisher
from outspark.config.settings import DestinationSettings
try:
    open_publisher("broker", DestinationSettings(type="kafka"))
except Exception as error:
    print(error)
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "pip install 'outspark[kafka]'" in answer.stdout
