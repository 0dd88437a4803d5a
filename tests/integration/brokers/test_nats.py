"""The NATS publisher against a real server: the contract, and what only JetStream can do to a message."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen

import nats
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy

from outspark.brokers import Publisher
from outspark.errors import DestinationDown, DestinationError, SettingsError
from outspark.event import Message
from outspark.outcome import DELIVERED, Dead, Outcome, Retry
from outspark.tools.servers.nats import Nats
from outspark.tools.servers.server import free_port
from tests.integration.brokers.contract import (
    TIMEOUT,
    Limits,
    Outages,
    PublisherContract,
    ReadBack,
    Received,
    assert_all_delivered,
    assert_all_waiting,
    message,
    messages,
    open_destination,
    received,
)
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("nats")

T = TypeVar("T")

_OURS = ("Nats-Msg-Id", "X-Partition-Key")


class NatsRig:
    """A stream of its own on a server; the URL carries credentials that the server does not ask for."""

    secret = "s3cr3t-pw"
    max_payload = 1024 * 1024

    def __init__(self, server: Nats) -> None:
        self.server = server
        self.stream = f"S{uuid.uuid4().hex}"
        self.topic = f"{self.stream}.order.created"
        self._publishers: list[Publisher] = []
        self.create_stream()

    def create_stream(self, **config: Any) -> None:
        async def create(jetstream: JetStreamContext) -> None:
            await jetstream.add_stream(name=self.stream, subjects=[f"{self.stream}.>"], **config)

        on_jetstream(self.server, create)

    def update_stream(self, **config: Any) -> None:
        async def update(jetstream: JetStreamContext) -> None:
            await jetstream.update_stream(name=self.stream, subjects=[f"{self.stream}.>"], **config)

        on_jetstream(self.server, update)

    def open(self, **options: Any) -> Publisher:
        url = self.server.url.replace("//", f"//user:{self.secret}@")
        publisher = open_destination("nats", url=url, options=options)
        self._publishers.append(publisher)
        return publisher

    def read(self) -> list[Received]:
        async def read(jetstream: JetStreamContext) -> list[Received]:
            count = (await jetstream.stream_info(self.stream)).state.messages
            subscription = await jetstream.subscribe(f"{self.stream}.>", ordered_consumer=True)
            return [_received(await subscription.next_msg(timeout=TIMEOUT)) for _ in range(count)]

        return on_jetstream(self.server, read)

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.server.kill()

    def close(self) -> None:
        for publisher in self._publishers:
            publisher.close()


def on_jetstream(server: Nats, work: Callable[[JetStreamContext], Awaitable[T]]) -> T:
    async def run() -> T:
        client = await nats.connect(server.url)
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(run())


def _received(sent: Any) -> Received:
    headers = sent.headers
    others = {name: value for name, value in headers.items() if name not in _OURS}
    return Received(headers["Nats-Msg-Id"], sent.subject, headers.get("X-Partition-Key"), sent.data, others)


class ConfiguredNats(Nats):
    """A server with more lines in its configuration."""

    def __init__(self, more: str, jetstream: bool = True) -> None:
        super().__init__()
        self._more = more
        self._jetstream = jetstream

    def _config(self, folder: Path, port: int) -> str:
        lines = super()._config(folder, port).splitlines()
        kept = [line for line in lines if self._jetstream or not line.startswith("jetstream")]
        return "\n".join([*kept, self._more]) + "\n"


@pytest.fixture
def rig(nats_server: Nats) -> Iterator[NatsRig]:
    rig = NatsRig(nats_server)
    yield rig
    rig.close()


@pytest.fixture
def own_rig() -> Iterator[NatsRig]:
    """With a server that the test may stop."""
    with Nats() as server:
        rig = NatsRig(server)
        yield rig
        rig.close()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Neither the client nor asyncio complains in the log: outcomes tell all."""
    yield
    gc.collect()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


class TestNats(PublisherContract, ReadBack, Limits):
    def test_leaves_order_under_failure_to_the_lane(self, rig: NatsRig) -> None:
        assert not rig.open().keeps_order


class TestNatsOutages(Outages):
    @pytest.fixture
    def rig(self, own_rig: NatsRig) -> NatsRig:
        return own_rig

    def test_killed_in_the_middle_of_a_batch(self, rig: NatsRig) -> None:
        publisher = rig.open()
        assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
        batch = messages(rig, 2000, size=20_000)
        killer = threading.Thread(target=lambda: _kill_after(rig, 200))
        killer.start()
        outcomes = publisher.publish(batch, TIMEOUT)
        killer.join()
        unsure = [sent for sent, outcome in zip(batch, outcomes, strict=True) if outcome is not DELIVERED]
        assert 0 < len(unsure) < 2000
        assert_all_waiting([outcome for outcome in outcomes if outcome is not DELIVERED], len(unsure))
        rig.start()
        assert_all_delivered(publisher.publish(unsure, TIMEOUT), len(unsure))
        arrived = [each.id for each in rig.read()][1:]
        assert len(arrived) == 2000, "JetStream knows the ids of what it took before"
        assert set(arrived) == {sent.id for sent in batch}

    def test_a_stalled_server_is_given_up_and_what_was_not_sent_stays_unsent(self, rig: NatsRig) -> None:
        publisher = rig.open()
        assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
        batch = messages(rig, 2000, size=20_000)  # 40 MB, far more than the sockets' buffers hold
        os.kill(rig.server.pid, signal.SIGSTOP)
        try:
            assert_all_waiting(publisher.publish(batch, 0.5), 2000)
        finally:
            os.kill(rig.server.pid, signal.SIGCONT)
        assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
        assert len(rig.read()) < 1500
        assert_all_delivered(publisher.publish(batch, TIMEOUT), 2000)
        assert len(rig.read()) == 2002

    def test_an_idle_connection_answers_the_server(self) -> None:
        """The server hangs up on a client that leaves two pings unanswered, which takes 0.3 s here."""
        port = free_port()
        config = f'ping_interval: 100ms\nping_max: 1\nhttp: "127.0.0.1:{port}"'
        with ConfiguredNats(config) as server, closing(NatsRig(server)) as rig:
            publisher = rig.open()
            assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
            [first] = _connections(port)
            wait_for(lambda: "1s" in _connections(port).values(), what="a connection that is one second old")
            assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
            assert list(_connections(port)) == [first]


def _connections(port: int) -> dict[int, str]:
    """The server's connections and how long it has had each, in whole seconds."""
    with urlopen(f"http://127.0.0.1:{port}/connz", timeout=TIMEOUT) as answer:
        return {each["cid"]: each["uptime"] for each in json.load(answer)["connections"]}


def _kill_after(rig: NatsRig, count: int) -> None:
    async def enough(jetstream: JetStreamContext) -> None:
        while (await jetstream.stream_info(rig.stream)).state.messages < count:
            pass

    on_jetstream(rig.server, enough)
    rig.kill()


def test_a_second_message_with_the_same_id_is_delivered_but_not_stored(rig: NatsRig) -> None:
    publisher, sent = rig.open(), message(rig)
    assert_all_delivered(publisher.publish([sent], TIMEOUT), 1)
    assert_all_delivered(publisher.publish([sent], TIMEOUT), 1)
    assert rig.read() == [received(sent)]


def test_our_own_headers_win(rig: NatsRig) -> None:
    sent = message(rig, key="k", headers={"Nats-Msg-Id": "theirs", "X-Partition-Key": "theirs", "a": "b"})
    rig.open().publish([sent], TIMEOUT)
    assert rig.read() == [Received(sent.id, rig.topic, "k", b"{}", {"a": "b"})]


@pytest.mark.parametrize(
    "topic", ["", "a b", "a..b", ".a", "a.", "a.*", "a.>", "a\r\nPUB b 0\r\n", "a\tb", "x" * 1025]
)
def test_a_topic_that_is_no_subject_is_dead_and_not_sent(rig: NatsRig, topic: str) -> None:
    bad = Message(str(uuid.uuid4()), topic, None, b"{}", {})
    good = messages(rig, 2)
    outcomes = rig.open().publish([good[0], bad, good[1]], TIMEOUT)
    assert [type(outcome) for outcome in outcomes] == [type(DELIVERED), Dead, type(DELIVERED)]
    assert "subject" in error_of(outcomes[1])
    assert len(rig.read()) == 2


def test_a_subject_without_a_stream_waits_with_the_remedy(rig: NatsRig) -> None:
    subject = f"nowhere.{rig.stream}"
    nowhere = Message(str(uuid.uuid4()), subject, None, b"{}", {})
    good = messages(rig, 2)
    outcomes = rig.open().publish([good[0], nowhere, good[1]], TIMEOUT)
    assert outcomes == [
        DELIVERED,
        Retry.of_topic("missing", f"no stream listens on subject '{subject}'; create one that does"),
        DELIVERED,
    ]


def test_headers_and_payload_together_over_the_servers_limit_are_dead(rig: NatsRig) -> None:
    full = message(rig, b"x" * (rig.max_payload - 50), headers={"a": "b" * 60})
    publisher = rig.open()
    assert "the server accepts at most 1048576" in error_of(publisher.publish([full], TIMEOUT)[0])
    assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)


def test_the_largest_message_that_fits_is_delivered(rig: NatsRig) -> None:
    sent = message(rig, headers={"note": "ä" * 10})
    sent.payload = b"x" * (rig.max_payload + 2 - overhead(rig, sent))
    assert_all_delivered(rig.open().publish([sent], TIMEOUT), 1)
    sent = Message(str(uuid.uuid4()), sent.topic, sent.key, sent.payload + b"x", sent.headers)
    assert isinstance(rig.open().publish([sent], TIMEOUT)[0], Dead)


def overhead(rig: NatsRig, sent: Message) -> int:
    headers = {**sent.headers, "Nats-Msg-Id": sent.id, "X-Partition-Key": sent.key or ""}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return len(f"NATS/1.0\r\n{lines}\r\n".encode()) + 2


def test_our_own_limit_for_payloads(rig: NatsRig) -> None:
    with closing(open_destination("nats", url=rig.server.url, max_payload=10)) as publisher:
        outcomes = publisher.publish([message(rig, b"x" * 10), message(rig, b"x" * 11)], TIMEOUT)
    assert outcomes == [DELIVERED, Dead("payload of 11 bytes is over the limit of 10")]


def test_over_the_limit_of_the_stream_is_dead(rig: NatsRig) -> None:
    rig.update_stream(max_msg_size=300)
    outcomes = rig.open().publish([message(rig), message(rig, b"x" * 400)], TIMEOUT)
    assert outcomes[0] == DELIVERED
    assert isinstance(outcomes[1], Dead)
    assert "10054" in outcomes[1].error


def test_headers_over_64_kib_are_dead(rig: NatsRig) -> None:
    outcomes = rig.open().publish([message(rig, headers={"a": "b" * 70_000}), message(rig)], TIMEOUT)
    assert isinstance(outcomes[0], Dead)
    assert outcomes[1] == DELIVERED


def test_a_full_stream_costs_no_attempt(rig: NatsRig) -> None:
    rig.update_stream(max_msgs=2, discard=DiscardPolicy.NEW)
    publisher, batch = rig.open(), messages(rig, 4)
    outcomes = publisher.publish(batch, TIMEOUT)
    assert_all_delivered(outcomes[:2], 2)
    assert_all_waiting(outcomes[2:], 2)
    assert "maximum messages exceeded" in error_of(outcomes[2])
    rig.update_stream(max_msgs=10, discard=DiscardPolicy.NEW)
    assert_all_delivered(publisher.publish(batch[2:], TIMEOUT), 2)


def test_another_refusal_counts_as_an_attempt(rig: NatsRig) -> None:
    [outcome] = rig.open().publish([message(rig, headers={"Nats-Expected-Stream": "OTHER"})], TIMEOUT)
    assert isinstance(outcome, Retry)
    assert outcome.counted


def test_an_answer_that_is_not_from_jetstream_is_no_ack(rig: NatsRig) -> None:
    """A service that answers on the subject must not make an event delivered."""

    async def answer_all(client: Client, subject: str) -> None:
        async def answer(request: Any) -> None:
            await request.respond(b"thanks")

        await client.subscribe(subject, cb=answer)
        await client.flush()

    subject = f"service.{rig.stream}"
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        client = asyncio.run_coroutine_threadsafe(nats.connect(rig.server.url), loop).result(TIMEOUT)
        asyncio.run_coroutine_threadsafe(answer_all(client, subject), loop).result(TIMEOUT)
        lonely = Message(str(uuid.uuid4()), subject, None, b"{}", {})
        outcomes = rig.open().publish([message(rig), lonely], 1.0)
        asyncio.run_coroutine_threadsafe(client.close(), loop).result(TIMEOUT)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert outcomes == [DELIVERED, Retry("no answer within 1.0 s", counted=True)]


def test_without_jetstream_events_wait() -> None:
    with ConfiguredNats("", jetstream=False) as server:
        with closing(open_destination("nats", url=server.url)) as publisher:
            sent = Message(str(uuid.uuid4()), "order.created", None, b"{}", {})
            [outcome] = publisher.publish([sent], TIMEOUT)
            assert_all_waiting([outcome], 1)
            assert "is it enabled" in error_of(outcome)
            with pytest.raises(DestinationDown, match="JetStream does not answer"):
                publisher.check(TIMEOUT)


def test_a_wrong_password_is_said_clearly_and_not_shown() -> None:
    with ConfiguredNats('authorization { user: "relay", password: "right" }') as server:
        url = server.url.replace("//", "//relay:wr0ng-pw@")
        with closing(open_destination("nats", url=url)) as publisher:
            sent = Message(str(uuid.uuid4()), "order.created", None, b"{}", {})
            for attempt in (lambda: publisher.publish([sent], TIMEOUT), lambda: publisher.check(TIMEOUT)):
                with pytest.raises(DestinationError, match="Authorization Violation") as refused:
                    attempt()
                assert not isinstance(refused.value, DestinationDown)
                assert f"127.0.0.1:{server.port}" in str(refused.value)
                assert "wr0ng-pw" not in str(refused.value) + repr(refused.value)


@pytest.mark.parametrize("options", [{"user": "relay", "password": "right"}, {}], ids=["options", "url"])
def test_credentials_by_url_and_by_options(options: dict[str, str]) -> None:
    with ConfiguredNats('authorization { user: "relay", password: "right" }') as server:
        url = server.url if options else server.url.replace("//", "//relay:right@")
        with closing(open_destination("nats", url=url, options=options)) as publisher:
            publisher.check(TIMEOUT)


def test_a_forbidden_subject_waits_and_the_others_pass() -> None:
    user = '{user: u, password: p, permissions: {publish: {deny: "S.Secret.>"}}}'
    with ConfiguredNats(f"authorization {{ users: [{user}] }}") as server:
        url, options = server.url.replace("//", "//u:p@"), {"stream": "S", "subjects": ["S.>"]}
        with closing(open_destination("nats", url=url, options=options)) as publisher:
            topics = ["S.open.a", "S.Secret.b", "S.open.c"]
            batch = [Message(str(uuid.uuid4()), topic, None, b"{}", {}) for topic in topics]
            outcomes = publisher.publish(batch, TIMEOUT)
            publisher.check(TIMEOUT)
    error = "not authorised to publish to subject 'S.Secret.b'; grant it to the user"
    assert outcomes == [DELIVERED, Retry.of_topic("forbidden", error), DELIVERED]


def test_creates_the_stream_that_is_asked_for_and_leaves_one_that_exists(own_rig: NatsRig) -> None:
    publisher = own_rig.open(stream="ORDERS", subjects=["order.>"])
    sent = Message(str(uuid.uuid4()), "order.created", None, b"{}", {})
    assert_all_delivered(publisher.publish([sent], TIMEOUT), 1)
    other = own_rig.open(stream="ORDERS", subjects=["other.>"])
    assert_all_delivered(other.publish([message(own_rig)], TIMEOUT), 1)
    with pytest.raises(DestinationError, match="cannot create stream MORE: subjects overlap"):
        own_rig.open(stream="MORE", subjects=["order.>"]).publish([sent], TIMEOUT)


def test_a_server_that_does_not_greet_is_given_up_after_the_connect_timeout(rig: NatsRig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url, options = f"nats://127.0.0.1:{silent.getsockname()[1]}", {"connect_timeout": "300ms"}
        with closing(open_destination("nats", url=url, options=options)) as publisher:
            started = time.monotonic()
            assert_all_waiting(publisher.publish(messages(rig, 2), TIMEOUT), 2)
            assert time.monotonic() - started < TIMEOUT


def test_takes_the_first_server_that_answers(rig: NatsRig) -> None:
    url = f"nats://127.0.0.1:1,{rig.server.url}"
    with closing(open_destination("nats", url=url)) as publisher:
        assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"tokn": "s3cr3t"},
            "tokn: Extra inputs are not permitted; allowed are: name, user, password, token",
        ),
        ({"token": ["s3cr3t"]}, "token: Input should be a valid string"),
        ({"stream": "S"}, "stream and subjects are given together"),
    ],
)
def test_wrong_options_are_named_without_their_values(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        open_destination("nats", options=options)
    assert complaint in str(wrong.value)
    assert "s3cr3t" not in str(wrong.value)


def test_a_missing_creds_file_is_named() -> None:
    with pytest.raises(DestinationError, match=r"no creds file missing\.creds"):
        open_destination("nats", options={"creds": "missing.creds"}).check(TIMEOUT)


def test_a_missing_client_gives_the_line_to_install_it() -> None:
    program = """
import sys
sys.modules["nats"] = None
from outspark.brokers import open_publisher
from outspark.config.settings import DestinationSettings
try:
    open_publisher("broker", DestinationSettings(type="nats"))
except Exception as error:
    print(error)
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.strip() == (
        "a destination of type nats needs a package that is not installed; run: pip install 'outspark[nats]'"
    )


def test_leaves_no_thread_behind(rig: NatsRig) -> None:
    before = set(threading.enumerate())
    publisher = rig.open()
    publisher.publish([message(rig)], TIMEOUT)
    assert set(threading.enumerate()) - before
    publisher.close()
    wait_for(lambda: not set(threading.enumerate()) - before, what="the end of the connection's thread")


def error_of(outcome: Outcome) -> str:
    assert isinstance(outcome, Retry | Dead), outcome
    return outcome.error
