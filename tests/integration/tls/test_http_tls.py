"""Webhooks over TLS: right certificates deliver, wrong ones are refused before anything is sent."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from outspark.errors import DestinationDown, SettingsError
from outspark.outcome import Retry
from tests.integration.brokers.receiver import Receiver
from tests.integration.tls import refusals
from tests.integration.tls.certificates import NAME, WRONG_NAME, Certificates, Pair
from tests.integration.tls.recorder import HOST, Recorder
from tests.integration.tls.refusals import PASSWORD, PAYLOAD

pytestmark = pytest.mark.needs("http")

TOPIC = "order.created"
assert_delivers = partial(refusals.assert_delivers, "http", TOPIC, allow_private=True)
assert_refused = partial(refusals.assert_refused, "http", TOPIC, allow_private=True)


def _receiver(certificates: Certificates, pair: Pair) -> Receiver:
    files = {"ssl_certfile": pair.cert, "ssl_keyfile": pair.key, "ssl_ca_certs": certificates.ca}
    given = {name: str(path) for name, path in files.items()}
    return Receiver({**given, "ssl_cert_reqs": int(ssl.CERT_REQUIRED)})


@pytest.fixture(scope="module")
def strict(certificates: Certificates) -> Iterator[Receiver]:
    """Takes only clients that have a certificate."""
    with _receiver(certificates, certificates.server) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def expired(certificates: Certificates) -> Iterator[Receiver]:
    with _receiver(certificates, certificates.expired) as receiver:
        yield receiver


def _url(receiver: Receiver, host: str = NAME) -> str:
    return f"https://relay:{PASSWORD}@{host}:{receiver.port}/hook"


def _files(certificates: Certificates) -> dict[str, str]:
    pair = certificates.client
    return {"ca_file": str(certificates.ca), "cert_file": str(pair.cert), "key_file": str(pair.key)}


def test_the_right_certificates_deliver(strict: Receiver, certificates: Certificates) -> None:
    before = len(strict.received())
    assert_delivers(url=_url(strict), **_files(certificates))
    assert [arrival.body for arrival in strict.received()][before:] == [PAYLOAD]


def test_an_unknown_ca(strict: Receiver, certificates: Certificates) -> None:
    before = len(strict.received())
    options = {**_files(certificates), "ca_file": str(certificates.wrong_ca)}
    assert_refused(reason=refusals.UNKNOWN_CA, url=_url(strict), **options)
    assert len(strict.received()) == before


def test_an_expired_certificate(expired: Receiver, certificates: Certificates) -> None:
    assert_refused(reason=refusals.EXPIRED, url=_url(expired), **_files(certificates))
    assert expired.received() == []


def test_a_certificate_for_another_name(strict: Receiver, certificates: Certificates) -> None:
    before = len(strict.received())
    assert_refused(reason=refusals.WRONG_HOST, url=_url(strict, WRONG_NAME), **_files(certificates))
    assert len(strict.received()) == before


class Webhook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Outspoken(ThreadingHTTPServer):
    """Says by an alert what it has against a client, as most servers do; those on asyncio just hang up."""

    def __init__(self, certificates: Certificates) -> None:
        super().__init__((HOST, 0), Webhook)
        pair = certificates.server
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates.ca)
        self._tls.verify_mode = ssl.CERT_REQUIRED
        self._tls.load_cert_chain(pair.cert, pair.key)

    def finish_request(self, request: Any, client_address: Any) -> None:
        with suppress(OSError), self._tls.wrap_socket(request, server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)


@pytest.fixture(scope="module")
def outspoken(certificates: Certificates) -> Iterator[str]:
    """Its URL."""
    with Outspoken(certificates) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"https://relay:{PASSWORD}@{NAME}:{server.server_port}/hook"
        server.shutdown()


def _stranger(certificates: Certificates) -> dict[str, str]:
    pair = certificates.stranger
    return {**_files(certificates), "cert_file": str(pair.cert), "key_file": str(pair.key)}


def test_no_certificate_of_our_own(outspoken: str, certificates: Certificates) -> None:
    assert_refused(reason=refusals.NO_CLIENT_CERTIFICATE, url=outspoken, ca_file=str(certificates.ca))


def test_a_certificate_of_ours_that_the_server_does_not_trust(
    outspoken: str, certificates: Certificates
) -> None:
    assert_delivers(url=outspoken, **_files(certificates))
    assert_refused(reason=refusals.NOT_OURS, url=outspoken, **_stranger(certificates))


@pytest.mark.parametrize("given", ["none", "stranger"])
def test_a_server_that_hangs_up_on_our_certificate_costs_no_attempt(
    strict: Receiver, certificates: Certificates, given: str
) -> None:
    before = len(strict.received())
    options = _stranger(certificates) if given == "stranger" else {"ca_file": str(certificates.ca)}
    with closing(refusals.open_at("http", _url(strict), {"allow_private": True, **options})) as publisher:
        with pytest.raises(DestinationDown, match="does it need a client certificate"):
            publisher.check(refusals.TIMEOUT)
        (outcome,) = publisher.publish([refusals.event(TOPIC)], refusals.TIMEOUT)
    assert isinstance(outcome, Retry)
    assert not outcome.counted
    assert "client certificate" in outcome.error
    assert len(strict.received()) == before


def test_a_real_server_without_tls(certificates: Certificates) -> None:
    with Receiver() as plain:
        assert_refused(reason=refusals.NOT_OFFERED, url=_url(plain), ca_file=str(certificates.ca))
        assert plain.received() == []


def test_nothing_secret_is_sent_in_the_clear(certificates: Certificates) -> None:
    with Recorder(b"HTTP/1.1 400 Bad Request\r\n\r\n") as recorder:
        url = f"https://relay:{PASSWORD}@{HOST}:{recorder.port}/hook"
        assert_refused(reason=refusals.NOT_OFFERED, url=url, ca_file=str(certificates.ca))
        assert recorder.heard()
        assert PASSWORD.encode() not in recorder.heard()
        assert PAYLOAD not in recorder.heard()


@pytest.mark.parametrize("option", ["ca_file", "cert_file"])
def test_certificates_and_a_url_in_the_clear_are_refused(certificates: Certificates, option: str) -> None:
    with pytest.raises(SettingsError, match="https://"):
        refusals.open_at("http", f"http://{HOST}/hook", {option: str(certificates.ca)})
