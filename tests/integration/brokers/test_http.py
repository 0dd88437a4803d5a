"""The HTTP publisher against a real receiver: the contract, what is on the wire, and readers that are not ours."""

from __future__ import annotations

import gc
import json
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from outspark.brokers import Publisher
from outspark.errors import DestinationDown, SettingsError
from outspark.event import Message
from outspark.outcome import HELD, Dead, Delivered, Held
from outspark.tools.servers.server import free_port
from tests.integration.brokers.contract import (
    TIMEOUT,
    Limits,
    Outages,
    PublisherContract,
    ReadableRig,
    ReadBack,
    Rig,
    assert_all_delivered,
    message,
    messages,
    open_destination,
    received,
)
from tests.integration.brokers.http_rig import HttpRig
from tests.integration.brokers.receiver import Receiver
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("http")

_PAGE = Path(__file__).parents[3] / "docs" / "publishers" / "http.md"

# A receiver that nobody here wrote: the standard library's server, which closes each connection.
_STDLIB_RECEIVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        print(json.dumps([self.requestline, dict(self.headers.items()), body]), flush=True)
        self.send_response(202)
        self.end_headers()

    def log_message(self, *args):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def rig(receiver: Receiver) -> Iterator[HttpRig]:
    rig = HttpRig(receiver)
    yield rig
    rig.close()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Neither the client nor asyncio complains in the log: outcomes tell all."""
    yield
    gc.collect()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


class TestHttp(PublisherContract):
    def test_takes_a_large_batch(self, rig: Rig) -> None:
        publish_whole(rig.open(), messages(rig, 2000))

    def test_keeps_order(self, rig: HttpRig) -> None:
        assert rig.open().keeps_order


class TestHttpInOrder(ReadBack, Limits):
    """Requests of different keys overtake each other, so only one at a time arrives in the order of the batch."""

    @pytest.fixture
    def rig(self, receiver: Receiver) -> Iterator[HttpRig]:
        rig = HttpRig(receiver, concurrency=1)
        yield rig
        rig.close()

    def test_keeps_the_order_of_a_large_batch(self, rig: ReadableRig) -> None:
        batch = messages(rig, 2000)
        publish_whole(rig.open(), batch)
        assert rig.read() == [received(sent) for sent in batch]


class TestHttpOutages(Outages):
    @pytest.fixture
    def rig(self) -> Iterator[HttpRig]:
        with Receiver() as receiver:
            rig = HttpRig(receiver, concurrency=1)
            yield rig
            rig.close()


def test_what_is_on_the_wire(rig: HttpRig) -> None:
    headers = {"content-type": "application/cloudevents+json", "ce-id": "7", "ce-specversion": "1.0"}
    sent = message(rig, b'{"total": 12}', key="42", headers=headers)
    publisher = rig.open(
        f"{rig.receiver.url}{rig.path}/{{topic}}?v=1", headers={"X-Api-Key": "abc"}, secret=None
    )
    assert_all_delivered(publisher.publish([sent], TIMEOUT), 1)
    [arrival] = rig.arrivals()
    assert arrival.target == f"{rig.path}/order.created?v=1"
    assert arrival.body == b'{"total": 12}'
    assert {name: value for name, value in arrival.headers.items() if name != "user-agent"} == {
        "host": rig.receiver.url.removeprefix("http://"),
        "content-type": "application/cloudevents+json",
        "content-length": "13",
        "x-event-id": sent.id,
        "x-event-topic": "order.created",
        "x-partition-key": "42",
        "x-api-key": "abc",
        "ce-id": "7",
        "ce-specversion": "1.0",
    }
    assert arrival.headers["user-agent"].startswith("outspark/")


def test_without_a_content_type_the_body_is_bytes(rig: HttpRig) -> None:
    assert_all_delivered(rig.open().publish([message(rig)], TIMEOUT), 1)
    assert rig.arrivals()[0].headers["content-type"] == "application/octet-stream"


def test_the_documented_snippet_verifies_the_signature(rig: HttpRig) -> None:
    snippet = re.search(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    assert snippet is not None
    documented: dict[str, Any] = {}
    exec(snippet[1], documented)
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    sent = message(rig, b'{"total": 12}')
    assert_all_delivered(rig.open(secret=secret).publish([sent], TIMEOUT), 1)
    [arrival] = rig.arrivals()
    assert documented["verify"](secret, arrival.headers, arrival.body) == sent.id
    for headers, body in (
        (arrival.headers, b'{"total": 13}'),
        ({**arrival.headers, "webhook-id": "other"}, arrival.body),
        ({**arrival.headers, "webhook-timestamp": "1614265330"}, arrival.body),
    ):
        with pytest.raises(ValueError, match="signature"):
            documented["verify"](secret, headers, body)


def test_a_receiver_that_nobody_here_wrote_reads_it() -> None:
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-c", _STDLIB_RECEIVER, str(port)], stdout=subprocess.PIPE, text=True
    ) as reader:
        try:
            options = {"allow_private": True}
            with closing(
                open_destination("http", url=f"http://127.0.0.1:{port}/in", options=options)
            ) as publisher:
                wait_for(lambda: _is_up(publisher), what="the server of the standard library")
                batch = [
                    Message(f"id-{number}", "order.created", "42", b'{"n": %d}' % number, {"a": "b"}, "42")
                    for number in range(3)
                ]
                assert_all_delivered(publisher.publish(batch, TIMEOUT), 3)
            assert reader.stdout is not None
            arrived = [json.loads(reader.stdout.readline()) for _ in range(3)]
        finally:
            reader.terminate()
    for number, (request, headers, body) in enumerate(arrived):
        assert request == "POST /in HTTP/1.1"
        assert body == f'{{"n": {number}}}'
        assert headers["X-Event-ID"] == f"id-{number}"
        assert (headers["X-Event-Topic"], headers["X-Partition-Key"], headers["a"]) == (
            "order.created",
            "42",
            "b",
        )


def test_curl_shows_what_arrived(rig: HttpRig) -> None:
    sent = message(rig, b'{"total": 12}', key="42", headers={"traceparent": "00-abc-def-01"})
    assert_all_delivered(rig.open().publish([sent], TIMEOUT), 1)
    shown = subprocess.run(
        ["curl", "--silent", "--fail", f"{rig.receiver.url}/received"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    [line] = [json.loads(line) for line in shown.stdout.splitlines() if rig.path in line]
    assert (line["body"], line["headers"]["x-event-id"]) == ('{"total": 12}', sent.id)
    assert line["headers"]["x-partition-key"] == "42"
    assert line["headers"]["traceparent"] == "00-abc-def-01"


def test_a_topic_or_key_that_no_header_can_carry_is_dead(rig: HttpRig) -> None:
    bad_key, bad_topic = message(rig, key="a\nb"), Message("id", "a\r\nX-Forged: 1", "k2", b"{}", {})
    outcomes = rig.open().publish([bad_key, bad_topic, message(rig)], TIMEOUT)
    assert outcomes[:2] == [
        Dead(f"header '{name}' holds a line break or control character, which HTTP cannot carry")
        for name in ("X-Partition-Key", "X-Event-Topic")
    ]
    assert len(rig.read()) == 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"secrt": "s3cr3t"},
            "secrt: Extra inputs are not permitted; allowed are: headers, secret, concurrency",
        ),
        ({"secret": ["s3cr3t"]}, "options: secret: Input should be a valid string"),
        ({"secret": ""}, "options.secret: must not be empty"),
        ({"secret": "whsec_s3cr3t!"}, "options.secret: the text after whsec_ must be base64"),
        ({"concurrency": 0}, "concurrency: Input should be greater than or equal to 1"),
        ({"headers": {"a b": "s3cr3t"}}, "options.headers: 'a b' is not an HTTP header name"),
        ({"headers": {"a": "s3cr3t\n"}}, "options.headers: header 'a' holds a line break"),
        ({"headers": {"Host": "s3cr3t"}}, "headers: Host cannot be set here"),
        ({"headers": {"x-event-id": "s3cr3t"}}, "headers: x-event-id cannot be set here"),
        ({"key_file": "k.pem"}, "key_file needs cert_file"),
    ],
)
def test_wrong_options_are_named_without_their_values(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        open_destination("http", url="https://hooks.example.com", options=options)
    assert complaint in str(wrong.value)
    assert "s3cr3t" not in str(wrong.value)


def test_a_url_is_needed() -> None:
    with pytest.raises(SettingsError, match=r"destinations\.dest\.url: must begin with https:// or http://"):
        open_destination("http")


def test_proxies_of_the_environment_are_not_used(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert_all_delivered(rig.open().publish([message(rig)], TIMEOUT), 1)


def test_leaves_no_thread_behind(rig: HttpRig) -> None:
    before = set(threading.enumerate())
    publisher = rig.open()
    publisher.publish(messages(rig, 20), TIMEOUT)
    assert set(threading.enumerate()) - before
    publisher.close()
    assert not set(threading.enumerate()) - before


def publish_whole(publisher: Publisher, batch: Sequence[Message]) -> None:
    """One request per message takes its time: what the batch's time leaves over is Held, and goes next."""
    deadline = time.monotonic() + 10 * TIMEOUT
    while batch and time.monotonic() < deadline:
        outcomes = publisher.publish(batch, TIMEOUT)
        assert {type(outcome) for outcome in outcomes} <= {Delivered, Held}
        batch = [sent for sent, outcome in zip(batch, outcomes, strict=True) if outcome == HELD]
    assert not batch


def _is_up(publisher: Publisher) -> bool:
    try:
        publisher.check(TIMEOUT)
    except DestinationDown:
        return False
    return True
