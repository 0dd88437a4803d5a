"""The RabbitMQ publisher against a real server: the contract, and what the broker does to single messages."""

from __future__ import annotations

import gc
import json
import logging
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from aio_pika.abc import AbstractChannel, DeliveryMode, ExchangeType

from outspark.errors import DestinationDown, DestinationError, SettingsError
from outspark.event import Message
from outspark.outcome import DELIVERED, Dead, Outcome, Retry
from outspark.tools.servers.rabbitmq import RabbitMQ
from outspark.tools.servers.server import free_port
from tests.integration.brokers.contract import (
    TIMEOUT,
    UNICODE,
    PublisherContract,
    ReadBack,
    Received,
    SizeLimit,
    assert_all_delivered,
    assert_all_waiting,
    message,
    messages,
    open_destination,
    received,
)
from tests.integration.brokers.rabbitmq_rig import (
    MAX_MESSAGE_SIZE,
    SECRET,
    RabbitMQRig,
    on_channel,
    write_definitions,
)
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("rabbitmq")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    options = {
        **write_definitions(tmp_path_factory.mktemp("rabbitmq") / "definitions.json"),
        "max_message_size": str(MAX_MESSAGE_SIZE),
        "management.tcp.ip": "127.0.0.1",
        "management.tcp.port": str(free_port()),
    }
    with RabbitMQ(options=options, plugins=["rabbitmq_management"]) as server:
        yield server


@pytest.fixture
def rig(server: RabbitMQ) -> Iterator[RabbitMQRig]:
    rig = RabbitMQRig(server)
    yield rig
    rig.close()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Neither the client nor asyncio complains in the log: outcomes tell all."""
    yield
    gc.collect()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


class TestRabbitMQ(PublisherContract, ReadBack, SizeLimit):
    def test_leaves_order_under_failure_to_the_lane(self, rig: RabbitMQRig) -> None:
        assert not rig.open().keeps_order


def sent_to(topic: str, payload: bytes = b"{}") -> Message:
    return Message(str(uuid.uuid4()), topic, "k", payload, {})


def error_of(outcome: Outcome) -> str:
    assert isinstance(outcome, Retry | Dead), outcome
    return outcome.error


def test_messages_are_persistent_and_say_what_they_are(rig: RabbitMQRig) -> None:
    plain, typed = message(rig), message(rig, headers={"Content-Type": "application/json"})
    rig.open().publish([plain, typed], TIMEOUT)
    assert rig.read() == [received(plain), received(typed)]
    assert [each.delivery_mode for each in rig.messages] == [DeliveryMode.PERSISTENT] * 2
    assert [each.content_type for each in rig.messages] == ["application/octet-stream", "application/json"]
    assert [each.message_id for each in rig.messages] == [plain.id, typed.id]


def test_our_own_headers_win(rig: RabbitMQRig) -> None:
    sent = message(rig, key="k", headers={"X-Event-ID": "theirs", "X-Partition-Key": "theirs", "a": "b"})
    rig.open().publish([sent], TIMEOUT)
    assert rig.read() == [Received(sent.id, rig.topic, "k", b"{}", {"a": "b"})]


def test_headers_may_hold_what_other_brokers_cannot_carry(rig: RabbitMQRig) -> None:
    headers = {"a\r\nb": "c\r\nd", "a b": "e", "": "f", UNICODE: UNICODE, "x" * 255: "y" * 100_000}
    sent = message(rig, headers=headers)
    assert_all_delivered(rig.open().publish([sent], TIMEOUT), 1)
    assert rig.read() == [received(sent)]


def test_a_payload_of_many_frames_arrives_whole(rig: RabbitMQRig) -> None:
    batch = [
        message(rig, bytes(range(256)) * (size // 256)) for size in (131_072, 131_072 * 3, MAX_MESSAGE_SIZE)
    ]
    assert_all_delivered(rig.open().publish(batch, TIMEOUT), 3)
    assert rig.read() == [received(sent) for sent in batch]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"topic": "x" * 256}, "routing key of 256 bytes is over the limit of 255"),
        ({"topic": "\ud800"}, "routing key '\\ud800' is not valid Unicode"),
        ({"id": "x" * 256}, "event id of 256 bytes is over the limit of 255"),
        ({"key": "\ud800"}, "header 'X-Partition-Key' is not valid Unicode"),
        ({"headers": {"ä" * 128: "a"}}, "header name of 256 bytes is over the limit of 255"),
        ({"headers": {"a": "\ud800"}}, "header 'a' is not valid Unicode"),
        ({"headers": {"content-type": "x" * 256}}, "header content-type of 256 bytes is over the limit"),
        ({"headers": {"CC": "other"}}, "header 'CC' would make RabbitMQ send copies elsewhere"),
        ({"headers": {"a": "b" * 131_072}}, "bytes do not fit a frame of 131072 bytes"),
    ],
    ids=["topic", "topic not Unicode", "id", "key", "name", "value", "content type", "CC", "all headers"],
)
def test_what_amqp_cannot_carry_is_dead_and_not_sent(
    rig: RabbitMQRig, changes: dict[str, Any], complaint: str
) -> None:
    good = messages(rig, 2)
    fields = {"id": "id", "topic": rig.topic, "key": None, "payload": b"", "headers": {}, **changes}
    outcomes = rig.open().publish([good[0], Message(**fields), good[1]], TIMEOUT)
    assert [type(outcome) for outcome in outcomes] == [type(DELIVERED), Dead, type(DELIVERED)]
    assert complaint in error_of(outcomes[1])
    assert rig.read() == [received(sent) for sent in good]


class TestUnroutable:
    def test_only_the_message_without_a_queue_waits(self, rig: RabbitMQRig) -> None:
        good, nowhere = messages(rig, 2), sent_to("nowhere")
        outcomes = rig.open().publish([good[0], nowhere, good[1]], TIMEOUT)
        assert outcomes == [
            DELIVERED,
            Retry.of_topic("missing", "unroutable: there is no queue 'nowhere'; create it"),
            DELIVERED,
        ]
        assert rig.read() == [received(sent) for sent in good]

    def test_in_a_large_batch_each_is_told_apart(self, rig: RabbitMQRig) -> None:
        batch = [
            sent if n % 3 else sent_to("nowhere", sent.payload) for n, sent in enumerate(messages(rig, 1500))
        ]
        publisher = rig.open()
        outcomes = publisher.publish(batch, TIMEOUT)
        assert [type(outcome) for outcome in outcomes] == [Retry, type(DELIVERED), type(DELIVERED)] * 500
        assert rig.read() == [received(sent) for sent in batch if sent.topic != "nowhere"]
        assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)

    def test_a_repeated_id_does_not_mix_up_the_answers(self, rig: RabbitMQRig) -> None:
        good = message(rig)
        lost = Message(good.id, "nowhere", None, b"{}", {})
        assert [type(each) for each in rig.open().publish([lost, good], TIMEOUT)] == [Retry, type(DELIVERED)]
        assert [type(each) for each in rig.open().publish([good, lost], TIMEOUT)] == [type(DELIVERED), Retry]
        assert rig.read() == [received(good)] * 2

    def test_on_an_exchange_without_a_binding_for_the_key(self, rig: RabbitMQRig) -> None:
        exchange = rig.bind(ExchangeType.TOPIC, "order.#")
        batch = [sent_to("order.created"), sent_to("user.created"), sent_to("order.item.added")]
        outcomes = rig.open(options={"exchange": exchange}).publish(batch, TIMEOUT)
        assert outcomes[::2] == [DELIVERED, DELIVERED]
        bound = f"no queue is bound to exchange '{exchange}' for routing key 'user.created'"
        assert error_of(outcomes[1]) == f"unroutable: {bound}; create it"
        assert rig.read() == [received(batch[0]), received(batch[2])]


def test_ten_thousand_topics_on_one_exchange(rig: RabbitMQRig) -> None:
    exchange = rig.bind(ExchangeType.FANOUT, "")
    batch = [sent_to(f"topic.{number}") for number in range(10_001)]
    assert_all_delivered(rig.open(options={"exchange": exchange}).publish(batch, TIMEOUT), 10_001)
    assert [each.topic for each in rig.read()] == [sent.topic for sent in batch]


class TestExchange:
    def test_one_that_is_missing_is_named(self, rig: RabbitMQRig) -> None:
        publisher = rig.open(options={"exchange": "missing"})
        for attempt in (lambda: publisher.publish([message(rig)], TIMEOUT), lambda: publisher.check(TIMEOUT)):
            with pytest.raises(
                DestinationError, match="no exchange 'missing' in vhost '/'; create it"
            ) as refused:
                attempt()
            assert not isinstance(refused.value, DestinationDown)

    def test_one_that_goes_away_costs_no_attempt(self, rig: RabbitMQRig) -> None:
        exchange = rig.bind(ExchangeType.FANOUT, "")
        publisher = rig.open(options={"exchange": exchange})
        assert_all_delivered(publisher.publish(messages(rig, 3), TIMEOUT), 3)

        async def delete(channel: AbstractChannel) -> None:
            await channel.exchange_delete(exchange)

        on_channel(rig.server, delete)
        outcomes = publisher.publish(messages(rig, 3), TIMEOUT)
        assert_all_waiting(outcomes, 3)
        assert f"no exchange '{exchange}'" in error_of(outcomes[0])
        with pytest.raises(DestinationError, match="no exchange"):
            publisher.check(TIMEOUT)

    def test_one_that_is_forbidden_costs_no_attempt(self, rig: RabbitMQRig) -> None:
        publisher = rig.open(url=rig.url("reader"))
        outcomes = publisher.publish(messages(rig, 3), TIMEOUT)
        assert_all_waiting(outcomes, 3)
        assert "ACCESS_REFUSED" in error_of(outcomes[0])
        assert error_of(outcomes[0]).endswith("; grant it")
        assert rig.read() == []

    def test_only_the_message_with_a_forbidden_key_waits(self, rig: RabbitMQRig) -> None:
        async def bind(channel: AbstractChannel) -> None:
            await (await channel.get_queue(rig.topic)).bind("amq.topic", "#")

        on_channel(rig.server, bind)
        publisher = rig.open(url=rig.url("clerk"), options={"exchange": "amq.topic"})
        publisher.check(TIMEOUT)
        topics = ["open.a", "secret.b", "open.c", "other.d", "open.e"]
        batch = [sent_to(topic) for topic in topics]
        outcomes = publisher.publish(batch, TIMEOUT)
        assert [type(outcome) for outcome in outcomes] == [type(DELIVERED), Retry] * 2 + [type(DELIVERED)]
        assert "topic 'secret.b' in exchange 'amq.topic'" in error_of(outcomes[1])
        # What the server had not confirmed when it closed the channel was sent again.
        assert {each.id for each in rig.read()} == {batch[0].id, batch[2].id, batch[4].id}


class TestTooLarge:
    def test_the_servers_limit_is_learnt_and_the_others_pass(self, rig: RabbitMQRig) -> None:
        publisher = rig.open(max_payload=None)
        small, large = messages(rig, 6), message(rig, b"x" * (MAX_MESSAGE_SIZE + 1))
        over = Dead(f"payload of {MAX_MESSAGE_SIZE + 1} bytes is over the limit of {MAX_MESSAGE_SIZE}")
        batch = [*small[:3], large, *small[3:]]
        assert publisher.publish(batch, TIMEOUT) == [DELIVERED] * 3 + [over] + [DELIVERED] * 3
        assert {each.id for each in rig.read()} == {sent.id for sent in small}
        before = len(rig.messages)
        assert publisher.publish(batch, TIMEOUT) == [DELIVERED] * 3 + [over] + [DELIVERED] * 3
        assert len(rig.read()) == before + 6, (
            "what is known to be too large is not sent, so nothing goes twice"
        )

    def test_our_own_limit(self, rig: RabbitMQRig) -> None:
        outcomes = rig.open(max_payload=10).publish(
            [message(rig, b"x" * 10), message(rig, b"x" * 11)], TIMEOUT
        )
        assert outcomes == [DELIVERED, Dead("payload of 11 bytes is over the limit of 10")]

    def test_after_large_chunks_are_on_their_way(self, rig: RabbitMQRig) -> None:
        """The channel is closed while we write on; not a frame may reach it after that."""
        publisher = rig.open(max_payload=None)
        batch = [message(rig, b"x" * (MAX_MESSAGE_SIZE + 1)), *messages(rig, 300, size=50_000)]
        outcomes = publisher.publish(batch, TIMEOUT)
        assert isinstance(outcomes[0], Dead)
        assert_all_delivered(outcomes[1:], 300)


def test_a_full_queue_burns_no_attempt(server: RabbitMQ) -> None:
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    with closing(RabbitMQRig(server, **arguments)) as rig:
        batch = messages(rig, 20)
        publisher = rig.open()
        outcomes = publisher.publish(batch, TIMEOUT)
        refused = [outcome for outcome in outcomes if outcome != DELIVERED]
        error = "refused by the broker (nack): a queue is full or has failed; make room in it"
        assert set(refused) == {Retry.of_topic("full", error)}
        passed = [sent for sent, outcome in zip(batch, outcomes, strict=True) if outcome == DELIVERED]
        assert rig.read() == [received(sent) for sent in passed]
        assert_all_delivered(publisher.publish(batch[-1:], TIMEOUT), 1)


class TestConnecting:
    def test_a_wrong_password_is_said_clearly_and_not_shown(self, rig: RabbitMQRig) -> None:
        publisher = rig.open(url=rig.url("relay", "wr0ng-pw"))
        for attempt in (lambda: publisher.publish([message(rig)], TIMEOUT), lambda: publisher.check(TIMEOUT)):
            with pytest.raises(DestinationError, match="ACCESS_REFUSED - Login was refused") as refused:
                attempt()
            assert not isinstance(refused.value, DestinationDown)
            assert f"127.0.0.1:{rig.server.port}" in str(refused.value)
            assert "wr0ng-pw" not in str(refused.value) + repr(refused.value)
            assert refused.value.__cause__ is None

    def test_a_missing_virtual_host_is_named(self, rig: RabbitMQRig) -> None:
        with pytest.raises(DestinationError, match="the virtual host 'shop' cannot be used"):
            rig.open(url=rig.url() + "shop").check(TIMEOUT)

    def test_credentials_by_options(self, rig: RabbitMQRig) -> None:
        url = rig.server.url.replace("guest:guest@", "")
        rig.open(url=url, options={"user": "relay", "password": SECRET}).check(TIMEOUT)

    def test_takes_the_first_server_that_answers(self, rig: RabbitMQRig) -> None:
        publisher = rig.open(url=f"amqp://127.0.0.1:1,{rig.url()}")
        assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)

    def test_a_server_that_does_not_greet_is_given_up_after_the_connect_timeout(
        self, rig: RabbitMQRig
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url, options = f"amqp://127.0.0.1:{silent.getsockname()[1]}", {"connect_timeout": "300ms"}
            started = time.monotonic()
            assert_all_waiting(rig.open(url=url, options=options).publish(messages(rig, 2), TIMEOUT), 2)
            assert time.monotonic() - started < TIMEOUT

    def test_leaves_no_thread_behind(self, rig: RabbitMQRig) -> None:
        before = set(threading.enumerate())
        publisher = rig.open()
        publisher.publish([message(rig)], TIMEOUT)
        assert set(threading.enumerate()) - before
        publisher.close()
        wait_for(lambda: not set(threading.enumerate()) - before, what="the end of the connection's thread")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"options": {"exchnge": "s3cr3t"}},
            "exchnge: Extra inputs are not permitted; allowed are: exchange",
        ),
        ({"options": {"password": ["s3cr3t"]}}, "password: Input should be a valid string"),
        ({"options": {"exchange": "s3cr3t*"}}, "exchange: String should match pattern"),
        ({"url": "nats://relay:s3cr3t@127.0.0.1"}, "destinations.dest.url is not a RabbitMQ URL"),
        ({"url": "amqp://relay:s3cr3t@host:port"}, "destinations.dest.url is not a RabbitMQ URL"),
        ({"url": "amqp://relay:s3cr3t@host", "options": {"ca_file": "ca.pem"}}, "need an amqps:// URL"),
    ],
    ids=["unknown", "type", "exchange", "scheme", "port", "TLS"],
)
def test_wrong_settings_are_named_without_their_values(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        open_destination("rabbitmq", **settings)
    assert complaint in str(wrong.value)
    assert "s3cr3t" not in str(wrong.value)


class TestConsumersOfOthers:
    """What programs that know nothing of us show of a message."""

    @pytest.fixture
    def sent(self, rig: RabbitMQRig) -> Message:
        headers = {"traceparent": "00-abc-def-01", "content-type": "application/json"}
        sent = message(rig, b'{"total": 12}', key="42", headers=headers)
        assert_all_delivered(rig.open().publish([sent], TIMEOUT), 1)
        return sent

    @pytest.mark.needs("amqp-tools")
    def test_amqp_get_shows_the_body(self, rig: RabbitMQRig, sent: Message) -> None:
        port = str(rig.server.port)
        command = ["amqp-get", "--server", "127.0.0.1", "--port", port, "--queue", rig.topic]
        shown = subprocess.run(command, capture_output=True, timeout=60, check=True)
        assert shown.stdout == sent.payload

    def test_rabbitmqadmin_shows_key_headers_and_body(
        self, rig: RabbitMQRig, sent: Message, tmp_path: Path
    ) -> None:
        port = rig.server.options["management.tcp.port"]
        program = tmp_path / "rabbitmqadmin"
        with urlopen(f"http://127.0.0.1:{port}/cli/rabbitmqadmin", timeout=TIMEOUT) as download:
            program.write_bytes(download.read())
        command = [
            sys.executable,
            str(program),
            "--port",
            port,
            "--format",
            "raw_json",
            "get",
            f"queue={rig.topic}",
        ]
        shown = subprocess.run(command, capture_output=True, timeout=60, check=True)
        [first] = json.loads(shown.stdout)
        assert first["payload"] == '{"total": 12}'
        assert first["routing_key"] == rig.topic
        assert first["properties"] == {
            "message_id": sent.id,
            "delivery_mode": 2,
            "content_type": "application/json",
            "headers": {
                "X-Event-ID": sent.id,
                "X-Partition-Key": "42",
                "traceparent": "00-abc-def-01",
                "content-type": "application/json",
            },
        }
