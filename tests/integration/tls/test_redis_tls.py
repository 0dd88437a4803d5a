"""Redis over TLS: right certificates deliver, wrong ones are refused before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest
from redis import Redis as Client

from outspark.errors import DestinationDown, SettingsError
from outspark.tools.servers.redis import Redis
from outspark.tools.servers.server import free_port
from tests.integration.tls import refusals
from tests.integration.tls.certificates import NAME, WRONG_NAME, Certificates, Pair
from tests.integration.tls.recorder import HOST, Recorder
from tests.integration.tls.refusals import PASSWORD, PAYLOAD

pytestmark = pytest.mark.needs("redis")

TOPIC = "order.created"
assert_delivers = partial(refusals.assert_delivers, "redis", TOPIC)
assert_refused = partial(refusals.assert_refused, "redis", TOPIC)


class TlsRedis(Redis):
    """Has a port in the clear, too."""

    def __init__(self, certificates: Certificates, pair: Pair) -> None:
        self.tls_port = free_port()
        files = {"cert": pair.cert, "key": pair.key, "ca-cert": certificates.ca}
        config = {f"tls-{name}-file": str(path) for name, path in files.items()}
        super().__init__(password=PASSWORD, config={"tls-port": str(self.tls_port), **config})

    def tls_url(self, host: str = NAME) -> str:
        return f"rediss://:{PASSWORD}@{host}:{self.tls_port}"


@pytest.fixture(scope="module")
def strict(certificates: Certificates) -> Iterator[TlsRedis]:
    """Takes only clients that have a certificate."""
    with TlsRedis(certificates, certificates.server) as server:
        yield server


@pytest.fixture(scope="module")
def expired(certificates: Certificates) -> Iterator[TlsRedis]:
    with TlsRedis(certificates, certificates.expired) as server:
        yield server


def _files(certificates: Certificates) -> dict[str, str]:
    pair = certificates.client
    return {"ca_file": str(certificates.ca), "cert_file": str(pair.cert), "key_file": str(pair.key)}


def _stored(server: Redis) -> int:
    with Client.from_url(server.url, protocol=2) as client:
        return int(client.xlen(TOPIC))


def test_the_right_certificates_deliver(strict: TlsRedis, certificates: Certificates) -> None:
    before = _stored(strict)
    assert_delivers(strict.tls_url(), **_files(certificates))
    assert _stored(strict) == before + 1


def test_an_unknown_ca(strict: TlsRedis, certificates: Certificates) -> None:
    options = {**_files(certificates), "ca_file": str(certificates.wrong_ca)}
    assert_refused(refusals.UNKNOWN_CA, strict.tls_url(), **options)


def test_an_expired_certificate(expired: TlsRedis, certificates: Certificates) -> None:
    assert_refused(refusals.EXPIRED, expired.tls_url(), **_files(certificates))
    assert _stored(expired) == 0


def test_a_certificate_for_another_name(strict: TlsRedis, certificates: Certificates) -> None:
    assert_refused(refusals.WRONG_HOST, strict.tls_url(WRONG_NAME), **_files(certificates))


def test_no_certificate_of_our_own(strict: TlsRedis, certificates: Certificates) -> None:
    assert_refused(refusals.NO_CLIENT_CERTIFICATE, strict.tls_url(), ca_file=str(certificates.ca))


def test_a_certificate_of_ours_that_the_server_does_not_trust(
    strict: TlsRedis, certificates: Certificates
) -> None:
    pair = certificates.stranger
    options = {**_files(certificates), "cert_file": str(pair.cert), "key_file": str(pair.key)}
    assert_refused(refusals.NOT_OURS, strict.tls_url(), **options)


def test_a_server_that_does_not_answer_the_handshake_may_be_one_without_tls(
    certificates: Certificates,
) -> None:
    """So does Redis in the clear, mostly: it waits for the end of the line."""
    with Recorder() as recorder:
        url, options = f"rediss://:{PASSWORD}@{HOST}:{recorder.port}", {"connect_timeout": "300ms"}
        with closing(refusals.open_at("redis", url, options)) as publisher:
            with pytest.raises(DestinationDown, match="does it offer TLS on this port"):
                publisher.check(refusals.TIMEOUT)


def test_nothing_secret_is_sent_in_the_clear(certificates: Certificates) -> None:
    with Recorder(b"-ERR Protocol error\r\n") as recorder:
        url = f"rediss://:{PASSWORD}@{HOST}:{recorder.port}"
        assert_refused(refusals.NOT_OFFERED, url, ca_file=str(certificates.ca))
        assert recorder.heard()
        assert PASSWORD.encode() not in recorder.heard()
        assert PAYLOAD not in recorder.heard()


@pytest.mark.parametrize("option", ["ca_file", "cert_file"])
def test_certificates_and_a_url_in_the_clear_are_refused(certificates: Certificates, option: str) -> None:
    with pytest.raises(SettingsError, match="rediss://"):
        refusals.open_at("redis", f"redis://:{PASSWORD}@{HOST}", {option: str(certificates.ca)})
