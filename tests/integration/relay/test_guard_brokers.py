"""A backlog whose topic is away on a real broker waits, costs no other topic anything, and drains when it is back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from aio_pika.abc import AbstractChannel, ExchangeType
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy

from outspark.tools.servers.nats import Nats
from outspark.tools.servers.rabbitmq import RabbitMQ
from outspark.tools.servers.redis import Redis
from tests.databases import Database
from tests.integration.brokers.http_rig import HttpRig
from tests.integration.brokers.kafka_rig import KafkaRig, records, shared_server
from tests.integration.brokers.rabbitmq_rig import RabbitMQRig, on_channel, write_definitions
from tests.integration.brokers.receiver import Receiver
from tests.integration.brokers.redis_rig import RedisRig, command
from tests.integration.brokers.test_nats import NatsRig, on_jetstream
from tests.integration.relay.backlog import (
    BATCH,
    KEYS,
    SOUND,
    Backlog,
    Counted,
    assert_in_order,
    goes_and_comes_back,
)
from tests.integration.relay.harness import Harness, close_harness
from tests.integration.relay.jeap_harness import JeapHarness
from tests.integration.relay.omnibox_harness import OmniboxHarness, open_omnibox_harness
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.needs("nats", "kafka", "rabbitmq", "redis", "http"),
    pytest.mark.faults,
    pytest.mark.timeout(3600),
]

NO_CREATION = {"allow.auto.create.topics": False, "topic.metadata.propagation.max.ms": 500}

FAILED = """\
SELECT convert_from(message, 'UTF8')::int FROM deferred_message WHERE fail_reason = 'INVALID_TOPIC' ORDER BY id"""
RESEND = "UPDATE deferred_message SET resend = true WHERE fail_reason = 'INVALID_TOPIC'"

Log = pytest.LogCaptureFixture


@pytest.fixture
def size(request: pytest.FixtureRequest) -> int:
    """How many events wait."""
    return 200_000 if "faults" in request.config.getoption("markexpr") else 2000


@pytest.fixture
def stream(nats_server: Nats) -> Iterator[NatsRig]:
    with closing(NatsRig(nats_server)) as rig:
        yield rig


@pytest.fixture
def lost_stream(nats_server: Nats) -> Iterator[NatsRig]:
    with closing(NatsRig(nats_server)) as rig:

        async def delete(jetstream: JetStreamContext) -> None:
            await jetstream.delete_stream(rig.stream)

        on_jetstream(nats_server, delete)
        yield rig


@pytest.fixture
def kafka() -> Iterator[KafkaRig]:
    with closing(KafkaRig(shared_server())) as rig:
        yield rig


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    definitions: Path = tmp_path_factory.mktemp("rabbitmq") / "definitions.json"
    with RabbitMQ(options=write_definitions(definitions)) as server:
        yield server


@pytest.fixture
def queue(rabbitmq: RabbitMQ) -> Iterator[RabbitMQRig]:
    with closing(RabbitMQRig(rabbitmq)) as rig:
        yield rig


@pytest.fixture
def omnibox(database: Database) -> Iterator[OmniboxHarness]:
    harness = open_omnibox_harness(database)
    yield harness
    close_harness(harness)


def test_a_nats_stream_that_is_missing(
    harness: Harness, stream: NatsRig, lost_stream: NatsRig, size: int, caplog: Log
) -> None:
    backlog = Backlog(harness, Counted(stream.open()), size, lost_stream.topic, stream.topic)
    goes_and_comes_back(backlog, lost_stream.create_stream, caplog)
    assert_in_order([each.payload for each in lost_stream.read()], size)
    assert_in_order([each.payload for each in stream.read()], SOUND)


def test_a_nats_stream_that_is_full(
    harness: Harness, stream: NatsRig, size: int, nats_server: Nats, caplog: Log
) -> None:
    with closing(NatsRig(nats_server)) as full:
        full.update_stream(max_msgs=50, discard=DiscardPolicy.NEW)
        backlog = Backlog(harness, Counted(stream.open()), size, full.topic, stream.topic)
        goes_and_comes_back(backlog, lambda: full.update_stream(max_msgs=-1), caplog, most_tries=2 * BATCH)
        assert_in_order([each.payload for each in full.read()], size)
    assert_in_order([each.payload for each in stream.read()], SOUND)


def test_a_kafka_topic_that_is_missing(harness: Harness, kafka: KafkaRig, size: int, caplog: Log) -> None:
    gone = f"{kafka.topic}.gone"
    backlog = Backlog(harness, Counted(kafka.open(**NO_CREATION)), size, gone, kafka.topic)
    goes_and_comes_back(backlog, lambda: kafka.create_topic(gone), caplog)
    assert_in_order([record.value() or b"" for record in records(kafka.server, gone)], size)
    assert_in_order([record.value() or b"" for record in records(kafka.server, kafka.topic)], SOUND)


def test_a_rabbitmq_queue_that_is_missing(
    harness: Harness, queue: RabbitMQRig, rabbitmq: RabbitMQ, size: int, caplog: Log
) -> None:
    with closing(RabbitMQRig(rabbitmq)) as lost:

        async def delete(channel: AbstractChannel) -> None:
            await channel.queue_delete(lost.topic)

        async def create(channel: AbstractChannel) -> None:
            await channel.declare_queue(lost.topic, durable=True)

        on_channel(rabbitmq, delete)
        backlog = Backlog(harness, Counted(queue.open()), size, lost.topic, queue.topic)
        goes_and_comes_back(backlog, lambda: on_channel(rabbitmq, create), caplog)
        assert_in_order([each.payload for each in lost.read()], size)
    assert_in_order([each.payload for each in queue.read()], SOUND)


def test_a_rabbitmq_exchange_that_is_missing(
    harness: Harness, queue: RabbitMQRig, rabbitmq: RabbitMQ, size: int, caplog: Log
) -> None:
    """Nothing goes through an exchange that is not there, so the whole destination waits."""

    async def create(channel: AbstractChannel) -> None:
        exchange = await channel.declare_exchange(queue.topic, ExchangeType.DIRECT, durable=True)
        await (await channel.get_queue(queue.topic)).bind(exchange, queue.topic)

    publisher = Counted(queue.open(options={"exchange": queue.topic}))
    backlog = Backlog(harness, publisher, size, queue.topic)
    backlog.tries_while_away = 1
    goes_and_comes_back(backlog, lambda: on_channel(rabbitmq, create), caplog)
    assert_in_order([each.payload for each in queue.read()], size)


def test_a_redis_at_its_memory_limit(harness: Harness, size: int, caplog: Log) -> None:
    """No stream of it takes anything, so the whole destination waits."""
    with Redis() as server, closing(RedisRig(server)) as rig:
        command(server, "CONFIG", "SET", "maxmemory", 1)
        backlog = Backlog(harness, Counted(rig.open()), size, rig.topic)
        backlog.tries_while_away = 1
        goes_and_comes_back(backlog, lambda: command(server, "CONFIG", "SET", "maxmemory", 0), caplog)
        assert_in_order([each.payload for each in rig.read()], size)


def test_a_webhook_that_answers_410_to_everything(harness: Harness, size: int, caplog: Log) -> None:
    with Receiver() as receiver, closing(HttpRig(receiver)) as rig:
        size //= 5  # a request each takes its time
        receiver.answer_all(410)
        backlog = Backlog(harness, Counted(rig.open()), size, rig.topic)
        goes_and_comes_back(backlog, lambda: receiver.answer_all(204), caplog)
        refused = len(rig.arrivals()) - size
        assert 0 < refused <= backlog.publisher.tries[rig.topic] - size
        assert_in_order([each.payload for each in rig.read()[refused:]], size)


def test_an_omnibox_whose_nats_stream_is_missing(
    omnibox: OmniboxHarness,
    stream: NatsRig,
    lost_stream: NatsRig,
    size: int,
    caplog: Log,
) -> None:
    backlog = Backlog(omnibox, Counted(stream.open()), size, lost_stream.topic, stream.topic)
    goes_and_comes_back(backlog, lost_stream.create_stream, caplog)
    assert_in_order([each.payload for each in lost_stream.read()], size)
    assert_in_order([each.payload for each in stream.read()], SOUND)


def test_a_jeap_outbox_whose_kafka_topic_is_missing(jeap: JeapHarness, kafka: KafkaRig, size: int) -> None:
    """jEAP's contract marks what finds out as failed: one batch at most, which `resend` brings back in order."""
    gone = f"{kafka.topic}.gone"
    backlog = Backlog(jeap, Counted(kafka.open(**NO_CREATION)), size, gone)

    with jeap.working(backlog.lane()):
        backlog.await_outage()
        failed = [number for (number,) in jeap.ask(FAILED)]
        assert 0 < len(failed) <= BATCH
        assert jeap.waiting() == size - len(failed)
        kafka.create_topic(gone)
        backlog.await_drained()
        assert [number for (number,) in jeap.ask(FAILED)] == failed
        jeap.conn.execute(RESEND)
        wait_for(lambda: not jeap.waiting(), what="what had failed")

    numbers = [int(record.value() or b"") for record in records(kafka.server, gone)]
    assert sorted(numbers) == list(range(size))
    first, resent = numbers[: size - len(failed)], numbers[size - len(failed) :]
    assert set(resent) == set(failed)
    for part in (first, resent):
        for key in range(KEYS):
            of_key = [number for number in part if number % KEYS == key]
            assert of_key == sorted(of_key)
