"""Kafka over TLS: right certificates deliver, wrong ones are refused before anything is sent; publisher and feed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from outspark.brokers import Feed, open_feed
from outspark.config.inbox import FeedSettings
from outspark.errors import FeedFailed, SettingsError
from tests.integration.tls import refusals
from tests.integration.tls.certificates import WRONG_NAME, Certificates
from tests.integration.tls.kafka_tls_rig import TOPIC, TlsKafka, login
from tests.integration.tls.passwords import EVERY, WRONG, assert_password_works
from tests.integration.tls.recorder import HOST, Recorder
from tests.integration.tls.refusals import PASSWORD, PAYLOAD, TIMEOUT
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("kafka")

assert_delivers = partial(refusals.assert_delivers, "kafka", TOPIC)
_OURS = ("ssl.certificate.location", "ssl.key.location")


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[TlsKafka]:
    with TlsKafka(certificates) as server:
        yield server


def _feed(url: str, options: dict[str, Any]) -> Feed:
    given = {"type": "kafka", "url": url, "topics": [TOPIC], "options": options}
    return open_feed(FeedSettings.model_validate(given), "billing", "lane-0")


def _assert_refused(reason: str, url: str, options: dict[str, Any]) -> None:
    refusals.assert_refused("kafka", TOPIC, reason, url, **options)
    with closing(_feed(url, options)) as feed:
        with pytest.raises(FeedFailed, match=reason) as refused:
            feed.check(TIMEOUT)
        assert PASSWORD not in str(refused.value)
        with pytest.raises(FeedFailed, match=reason):
            wait_for(lambda: feed.poll(10, 0.5), what="a refusal")


def test_the_right_certificates_deliver(server: TlsKafka, certificates: Certificates) -> None:
    assert_delivers(server.tls_url(), **login(certificates))
    with closing(_feed(server.tls_url(), login(certificates))) as feed:
        feed.check(TIMEOUT)
        (one,) = wait_for(lambda: feed.poll(10, 0.5), timeout=30, what="the event")
        assert one.body == PAYLOAD


def test_an_unknown_ca(server: TlsKafka, certificates: Certificates) -> None:
    options = login(certificates, **{"ssl.ca.location": str(certificates.wrong_ca)})
    _assert_refused(refusals.UNKNOWN_CA, server.tls_url(), options)


def test_an_expired_certificate(server: TlsKafka, certificates: Certificates) -> None:
    options = login(certificates, **{"security.protocol": "ssl"})
    _assert_refused(refusals.EXPIRED, server.expired_url, options)


def test_a_certificate_for_another_name(server: TlsKafka, certificates: Certificates) -> None:
    _assert_refused(refusals.WRONG_HOST, server.tls_url(WRONG_NAME), login(certificates))


def test_no_certificate_of_our_own(server: TlsKafka, certificates: Certificates) -> None:
    options = login(certificates, **dict.fromkeys(_OURS, ""))
    _assert_refused(refusals.NO_CLIENT_CERTIFICATE, server.tls_url(), options)


def test_a_certificate_of_ours_that_the_server_does_not_trust(
    server: TlsKafka, certificates: Certificates
) -> None:
    pair = certificates.stranger
    options = login(certificates, **dict(zip(_OURS, (str(pair.cert), str(pair.key)), strict=True)))
    _assert_refused(refusals.NOT_OURS, server.tls_url(), options)


def test_a_real_server_without_tls(server: TlsKafka, certificates: Certificates) -> None:
    """A broker hangs up, as one does that is going away, so this may pass."""
    with closing(refusals.open_at("kafka", server.url, login(certificates))) as publisher:
        refusals.assert_waits(publisher, TOPIC, refusals.NOT_OFFERED)


@pytest.mark.parametrize("password", [EVERY, WRONG], ids=["right", "wrong"])
def test_a_password_of_all_characters(
    server: TlsKafka, certificates: Certificates, caplog: pytest.LogCaptureFixture, password: str
) -> None:
    options = login(certificates, **{"sasl.username": "odd", "sasl.password": password})
    assert_password_works("kafka", TOPIC, server.tls_url(), password, caplog, **options)


def test_nothing_secret_is_sent_in_the_clear(certificates: Certificates) -> None:
    with Recorder(b"not TLS at all") as recorder:
        _assert_refused(refusals.NOT_OFFERED, f"kafka://{HOST}:{recorder.port}", login(certificates))
        assert recorder.heard()
        assert PASSWORD.encode() not in recorder.heard()
        assert PAYLOAD not in recorder.heard()


@pytest.mark.parametrize("protocol", ["", "plaintext", "sasl_plaintext"])
def test_certificates_without_tls_are_refused(certificates: Certificates, protocol: str) -> None:
    options = login(certificates, **{"security.protocol": protocol})
    with pytest.raises(SettingsError, match=r"needs security\.protocol"):
        refusals.open_at("kafka", f"kafka://{HOST}:1", options)
    with pytest.raises(SettingsError, match=r"needs security\.protocol"):
        _feed(f"kafka://{HOST}:1", options)
