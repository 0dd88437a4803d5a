"""NATS over TLS: the publisher and the feed, against real servers and against one that only says it is one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from nats.aio.client import Client

from outspark.brokers import Feed, Publisher, open_feed, open_publisher
from outspark.config.inbox import FeedSettings
from outspark.config.settings import DestinationSettings
from outspark.errors import DestinationDown, DestinationError, FeedFailed
from outspark.event import Message
from outspark.outcome import DELIVERED
from outspark.tools.servers.nats import Nats
from tests.integration.brokers.test_nats import ConfiguredNats
from tests.integration.tls.certificates import NAME, WRONG_NAME, Certificates, Pair
from tests.integration.tls.recorder import HOST, Recorder
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("nats")

TIMEOUT = 10.0
PASSWORD = "pw-that-stays"
PAYLOAD = b"payload-that-stays"
STREAM, TOPIC = "SHOP", "shop.order"
LOGIN = f"relay:{PASSWORD}@"
AUTHORIZATION = f'authorization {{ user: relay, password: "{PASSWORD}" }}'


def _info(**more: Any) -> bytes:
    """As a server greets: it asks for a password, and does not speak of TLS unless it is told to."""
    known = {"server_id": "X", "version": "2.10.0", "max_payload": 1048576, "headers": True}
    return b"INFO " + json.dumps({**known, "auth_required": True, **more}).encode() + b"\r\n"


def _event() -> Message:
    return Message(str(uuid.uuid4()), TOPIC, "k", PAYLOAD, {}, "k")


def _publisher(url: str, **options: Any) -> Publisher:
    settings = {"type": "nats", "url": url, "options": {"stream": STREAM, "subjects": ["shop.>"], **options}}
    return open_publisher("bus", DestinationSettings.model_validate(settings))


def _feed(url: str, **options: Any) -> Feed:
    given = {"type": "nats", "url": url, "topics": [TOPIC], "stream": STREAM, "options": options}
    return open_feed(FeedSettings.model_validate(given), "billing", "lane-0")


def _deliver(url: str, **options: Any) -> None:
    with closing(_publisher(url, **options)) as publisher:
        publisher.check(TIMEOUT)
        assert publisher.publish([_event()], TIMEOUT) == [DELIVERED]


def _take(url: str, **options: Any) -> None:
    with closing(_feed(url, **options)) as feed:
        feed.check(TIMEOUT)
        wait_for(lambda: [one for one in feed.poll(10, 1.0) if one.body == PAYLOAD], what="the event")


def _assert_publisher_refused(reason: str, url: str, **options: Any) -> None:
    with closing(_publisher(url, **options)) as publisher:
        for attempt in (lambda: publisher.publish([_event()], TIMEOUT), lambda: publisher.check(TIMEOUT)):
            with pytest.raises(DestinationError, match=reason) as refused:
                attempt()
            assert not isinstance(refused.value, DestinationDown)
            assert PASSWORD not in str(refused.value)


def _assert_feed_refused(reason: str, url: str, **options: Any) -> None:
    with closing(_feed(url, **options)) as feed:
        for attempt in (lambda: feed.check(TIMEOUT), lambda: feed.poll(10, 1.0)):
            with pytest.raises(FeedFailed, match=reason) as refused:
                attempt()
            assert PASSWORD not in str(refused.value)


REFUSALS = pytest.mark.parametrize("assert_refused", [_assert_publisher_refused, _assert_feed_refused])
NOT_OFFERED = "the server does not offer TLS"


@REFUSALS
@pytest.mark.parametrize("wish", ["tls", "nats"])
def test_nothing_is_sent_to_a_server_that_offers_no_tls(
    certificates: Certificates, assert_refused: Any, wish: str
) -> None:
    """Somebody in between would leave TLS out of the greeting, and be told all."""
    options = {} if wish == "tls" else {"ca_file": str(certificates.ca)}
    with Recorder(_info(), {b"PING\r\n": b"PONG\r\n"}) as recorder:
        assert_refused(NOT_OFFERED, f"{wish}://{LOGIN}{HOST}:{recorder.port}", **options)
        assert recorder.connections >= 2
        assert recorder.heard() == b""


@REFUSALS
def test_one_wish_for_tls_counts_for_all_servers(assert_refused: Any) -> None:
    with Recorder(_info()) as first, Recorder(_info()) as second:
        url = f"nats://{LOGIN}{HOST}:{first.port},tls://{LOGIN}{HOST}:{second.port}"
        assert_refused(NOT_OFFERED, url)
        assert (first.heard(), second.heard()) == (b"", b"")


@REFUSALS
def test_a_real_server_without_tls_is_refused(
    nats_server: Nats, certificates: Certificates, assert_refused: Any
) -> None:
    assert_refused(NOT_OFFERED, f"tls://{LOGIN}{HOST}:{nats_server.port}", ca_file=str(certificates.ca))
    assert_refused(NOT_OFFERED, f"nats://{LOGIN}{HOST}:{nats_server.port}", ca_file=str(certificates.ca))


def _server(pair: Pair, more: str = "", after: str = "") -> ConfiguredNats:
    lines = f'cert_file: "{pair.cert}", key_file: "{pair.key}", timeout: 5 {more}'
    return ConfiguredNats(f"tls {{ {lines} }}\n{AUTHORIZATION}\n{after}")


@pytest.fixture(scope="module")
def strict(certificates: Certificates) -> Iterator[Nats]:
    """Takes only clients that have a certificate."""
    with _server(certificates.server, f', ca_file: "{certificates.ca}", verify: true') as server:
        yield server


@pytest.fixture(scope="module")
def optional(certificates: Certificates) -> Iterator[Nats]:
    """Speaks TLS with whoever wants it."""
    with _server(certificates.server, after="allow_non_tls: true") as server:
        yield server


@pytest.fixture(scope="module")
def expired(certificates: Certificates) -> Iterator[Nats]:
    with _server(certificates.expired) as server:
        yield server


def _url(server: Nats, host: str = NAME) -> str:
    return f"tls://{LOGIN}{host}:{server.port}"


def _files(certificates: Certificates) -> dict[str, str]:
    pair = certificates.client
    return {"ca_file": str(certificates.ca), "cert_file": str(pair.cert), "key_file": str(pair.key)}


@pytest.mark.parametrize("scheme", ["tls", "nats"])
def test_the_right_certificates_deliver(strict: Nats, certificates: Certificates, scheme: str) -> None:
    url = _url(strict).replace("tls://", f"{scheme}://")
    _deliver(url, **_files(certificates))
    _take(url, **_files(certificates))


def test_tls_is_used_where_the_server_leaves_the_choice(optional: Nats, certificates: Certificates) -> None:
    _deliver(_url(optional), ca_file=str(certificates.ca))
    _take(_url(optional), ca_file=str(certificates.ca))
    _assert_publisher_refused("unknown CA", _url(optional), ca_file=str(certificates.wrong_ca))


@REFUSALS
def test_an_unknown_ca(strict: Nats, certificates: Certificates, assert_refused: Any) -> None:
    options = {**_files(certificates), "ca_file": str(certificates.wrong_ca)}
    assert_refused("unknown CA", _url(strict), **options)


@REFUSALS
def test_an_expired_certificate(expired: Nats, certificates: Certificates, assert_refused: Any) -> None:
    assert_refused("has expired", _url(expired), ca_file=str(certificates.ca))


@REFUSALS
def test_a_certificate_for_another_name(
    strict: Nats, certificates: Certificates, assert_refused: Any
) -> None:
    assert_refused("is not for the host", _url(strict, WRONG_NAME), **_files(certificates))


@REFUSALS
def test_no_certificate_of_our_own(strict: Nats, certificates: Certificates, assert_refused: Any) -> None:
    assert_refused("asks for a client certificate", _url(strict), ca_file=str(certificates.ca))


@REFUSALS
def test_a_certificate_of_ours_that_the_server_does_not_trust(
    strict: Nats, certificates: Certificates, assert_refused: Any
) -> None:
    pair = certificates.stranger
    options = {**_files(certificates), "cert_file": str(pair.cert), "key_file": str(pair.key)}
    assert_refused("refuses the client certificate", _url(strict), **options)


@REFUSALS
def test_a_refusal_that_the_connection_was_lost_too_early_to_tell(
    strict: Nats, certificates: Certificates, assert_refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a loaded machine a write fails before the server's alert is read, and takes the alert with it."""
    connect = Client._process_connect_init

    async def lose_the_alert(client: Any) -> None:
        try:
            await connect(client)
        except OSError:
            client._transport._io_reader._exception = None
            raise BrokenPipeError(32, "Broken pipe") from None

    monkeypatch.setattr(Client, "_process_connect_init", lose_the_alert)
    assert_refused("asks for a client certificate", _url(strict), ca_file=str(certificates.ca))
