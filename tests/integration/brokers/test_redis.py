"""The Redis publisher against a real server: the contract, what is on the wire, and its options."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from outspark.errors import DestinationDown, DestinationError, ServerStartError, SettingsError
from outspark.event import Message
from outspark.outcome import DELIVERED, Dead
from outspark.tools.servers.redis import Redis, program
from outspark.tools.servers.server import HOST, free_port
from tests.integration.brokers.contract import (
    TIMEOUT,
    UNICODE,
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
from tests.integration.brokers.redis_rig import SECRET, RedisRig, command, error_of, message_to
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("redis")


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with Redis(password=SECRET) as server:
        yield server


@pytest.fixture
def rig(server: Redis) -> Iterator[RedisRig]:
    server.start()
    with closing(RedisRig(server)) as rig:
        yield rig


class TestRedis(PublisherContract, ReadBack, SizeLimit):
    def test_leaves_order_under_failure_to_the_lane(self, rig: RedisRig) -> None:
        assert not rig.open().keeps_order

    def test_carries_any_header(self, rig: RedisRig) -> None:
        headers = {
            "a": "b\r\nc",
            "d\r\ne": "f",
            "g h": "i",
            "": "j",
            "ä": UNICODE,
            "id": "no",
            "payload": "no",
        }
        sent = message(rig, headers=headers)
        assert_all_delivered(rig.open().publish([sent], TIMEOUT), 1)
        assert rig.read() == [received(sent)]


class TestRedisOutages(Outages):
    """Redis starts in a blink, so the module's own server is stopped and killed; its data stay."""

    def test_killed_in_the_middle_of_a_batch(self, rig: RedisRig) -> None:
        publisher, batch = rig.open(), messages(rig, 2000, size=20_000)
        assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)
        killer = threading.Thread(target=lambda: _kill_after(rig, 200))
        killer.start()
        outcomes = publisher.publish(batch, TIMEOUT)
        killer.join()
        unsure = [sent for sent, outcome in zip(batch, outcomes, strict=True) if outcome is not DELIVERED]
        assert 0 < len(unsure) < 2000
        assert_all_waiting([outcome for outcome in outcomes if outcome is not DELIVERED], len(unsure))
        rig.start()
        assert_all_delivered(publisher.publish(unsure, TIMEOUT), len(unsure))
        assert {each.id for each in rig.read()[1:]} == {sent.id for sent in batch}


def _kill_after(rig: RedisRig, count: int) -> None:
    wait_for(lambda: command(rig.server, "XLEN", rig.topic) > count, what="the middle of the batch")
    rig.kill()


def test_redis_cli_shows_what_the_documentation_says(rig: RedisRig) -> None:
    headers = {"traceparent": "00-abc-def-01", "note": UNICODE}
    sent = message(rig, b'{"total": 12}', key="order 42", headers=headers)
    assert_all_delivered(rig.open().publish([sent, message_to(rig.topic, b"[]", None)], TIMEOUT), 2)
    cli = shutil.which("redis-cli")
    assert cli is not None
    argv = [cli, "-h", HOST, "-p", str(rig.server.port), "XRANGE", rig.topic, "-", "+"]
    shown = subprocess.run(
        argv, env={**os.environ, "REDISCLI_AUTH": SECRET}, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    first = ["id", sent.id, "payload", '{"total": 12}', "partition_key", "order 42"]
    assert shown[1:11] == [*first, "h:traceparent", "00-abc-def-01", "h:note", UNICODE]
    assert (shown[12], shown[14:]) == ("id", ["payload", "[]"])


@pytest.mark.parametrize(
    ("options", "fewest", "most"),
    [({}, 500, 500), ({"maxlen": 100}, 100, 250), ({"maxlen": 100, "exact": True}, 100, 100)],
    ids=["not trimmed", "about", "exactly"],
)
def test_streams_are_trimmed_when_asked_for(
    rig: RedisRig, options: dict[str, Any], fewest: int, most: int
) -> None:
    batch = messages(rig, 500)
    assert_all_delivered(rig.open(**options).publish(batch, TIMEOUT), 500)
    kept = rig.read()
    assert fewest <= len(kept) <= most
    assert kept == [received(sent) for sent in batch[-len(kept) :]]


@pytest.mark.parametrize("field", ["topic", "key", "headers"])
def test_text_that_is_not_unicode_is_dead_and_the_others_pass(rig: RedisRig, field: str) -> None:
    bad, good = message(rig), messages(rig, 2)
    setattr(bad, field, {"a": "\ud800"} if field == "headers" else "\ud800")
    outcomes = rig.open().publish([good[0], bad, good[1]], TIMEOUT)
    assert [type(outcome) for outcome in outcomes] == [type(DELIVERED), Dead, type(DELIVERED)]
    assert "not valid Unicode" in error_of(outcomes[1])


def test_a_database_of_the_url_is_used(rig: RedisRig) -> None:
    assert_all_delivered(rig.open_at(f"{rig.server.url}/3").publish([message(rig)], TIMEOUT), 1)
    assert rig.read() == []
    with pytest.raises(DestinationError, match="DB index is out of range"):
        rig.open_at(f"{rig.server.url}/99").check(TIMEOUT)


def test_takes_the_first_server_that_answers(rig: RedisRig) -> None:
    publisher = rig.open_at(f"redis://127.0.0.1:1, {rig.server.url}")
    assert_all_delivered(publisher.publish([message(rig)], TIMEOUT), 1)


def test_credentials_by_options(rig: RedisRig) -> None:
    publisher = rig.open_at(rig.server.url.replace(f":{SECRET}@", ""), username="default", password=SECRET)
    publisher.check(TIMEOUT)
    assert SECRET not in repr(publisher)


def test_its_connection_has_a_name(rig: RedisRig) -> None:
    publisher = rig.open(name="billing")
    publisher.check(TIMEOUT)
    assert b"name=billing" in command(rig.server, "CLIENT", "LIST")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxlne": 3}, "maxlne: Extra inputs are not permitted; allowed are: name, username"),
        ({"maxlen": 0}, "maxlen: Input should be greater than or equal to 1"),
        ({"exact": True}, "exact needs maxlen"),
        ({"name": "two words"}, "name: String should match"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=r"destinations\.dest\.options") as refused:
        open_destination("redis", options=options)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://:pw-here@host", "must be redis://"),
        ("redis://:pw-here#x@host", "percent-encoded"),
        ("redis://:pw-here@host?protocol=3", "unknown parameter 'protocol'"),
        ("redis://:pw-here@host?db=x", "must be redis://"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused(url: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as refused:
        open_destination("redis", url=url)
    assert "pw-here" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    argv = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout key.pem -out cert.pem"
    )
    names = ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*argv.split(), *names], cwd=folder, capture_output=True, check=True)
    return folder


@pytest.fixture(scope="module")
def tls_port(certificates: Path) -> Iterator[int]:
    port = free_port()
    config = {
        "tls-port": str(port),
        "tls-auth-clients": "no",
        "tls-cert-file": f"{certificates}/cert.pem",
        "tls-key-file": f"{certificates}/key.pem",
        "tls-ca-cert-file": f"{certificates}/cert.pem",
    }
    with Redis(config=config):
        yield port


class TestTls:
    def test_by_url_and_options(self, certificates: Path, tls_port: int, rig: RedisRig) -> None:
        publisher = rig.open_at(f"rediss://localhost:{tls_port}", ca_file=str(certificates / "cert.pem"))
        publisher.check(TIMEOUT)
        assert_all_delivered(publisher.publish(messages(rig, 300), TIMEOUT), 300)

    def test_a_certificate_that_is_not_trusted_is_said_clearly(self, tls_port: int, rig: RedisRig) -> None:
        with pytest.raises(DestinationError, match="CERTIFICATE_VERIFY_FAILED") as refused:
            rig.open_at(f"rediss://localhost:{tls_port}").publish([message(rig)], TIMEOUT)
        assert not isinstance(refused.value, DestinationDown)

    def test_the_name_in_the_certificate_counts_unless_told_otherwise(
        self, certificates: Path, tls_port: int, rig: RedisRig
    ) -> None:
        url, ca_file = f"rediss://{HOST}:{tls_port}", str(certificates / "cert.pem")
        with pytest.raises(DestinationError, match="CERTIFICATE_VERIFY_FAILED"):
            rig.open_at(url, ca_file=ca_file).check(TIMEOUT)
        rig.open_at(url, ca_file=ca_file, check_hostname=False).check(TIMEOUT)

    def test_a_missing_file_is_said_clearly(self, tls_port: int, rig: RedisRig) -> None:
        with pytest.raises(DestinationError, match=r"there is no ca_file nowhere\.pem"):
            rig.open_at(f"rediss://localhost:{tls_port}", ca_file="nowhere.pem").check(TIMEOUT)


def test_without_the_program_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(ServerStartError, match="apt install redis-server"):
        program()


def test_an_event_keeps_its_id_when_it_is_sent_twice(rig: RedisRig) -> None:
    """Redis knows nothing of ids, so consumers drop the second one by its field."""
    publisher, sent = rig.open(), message(rig)
    assert_all_delivered(publisher.publish([sent], TIMEOUT), 1)
    assert_all_delivered(publisher.publish([sent], TIMEOUT), 1)
    assert rig.read() == [received(sent)] * 2


def test_ten_thousand_streams(rig: RedisRig) -> None:
    batch = [message_to(f"{rig.topic}:{number}", key=f"k{number}") for number in range(10_000)]
    publisher = rig.open()
    assert_all_delivered(publisher.publish(batch, TIMEOUT), 10_000)
    more = [Message(sent.id, sent.topic, sent.key, sent.payload, {}) for sent in batch[:100]]
    assert_all_delivered(publisher.publish(more, TIMEOUT), 100)
    assert rig.read(batch[99].topic) == [received(batch[99])] * 2
    assert rig.read(batch[9_999].topic) == [received(batch[9_999])]
