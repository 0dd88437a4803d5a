"""The HTTP publisher over TLS, against a receiver that also asks for a certificate of the client."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from outspark.errors import DestinationDown, DestinationError
from tests.integration.brokers.contract import TIMEOUT, assert_all_delivered, message, messages
from tests.integration.brokers.http_rig import HttpRig
from tests.integration.brokers.receiver import Receiver

pytestmark = pytest.mark.needs("http", "openssl")


class Certificate:
    """Signed by itself, for localhost and 127.0.0.1."""

    def __init__(self, folder: Path, name: str) -> None:
        self.cert, self.key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
        subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        subprocess.run(
            ["openssl", "req", "-x509", *curve, *subject, "-keyout", self.key, "-out", self.cert],
            capture_output=True,
            timeout=60,
            check=True,
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("server"), "server")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("client"), "client")


@pytest.fixture(scope="module")
def receiver(server: Certificate, client: Certificate) -> Iterator[Receiver]:
    files = {"ssl_certfile": server.cert, "ssl_keyfile": server.key, "ssl_ca_certs": client.cert}
    with Receiver({**files, "ssl_cert_reqs": 2}) as receiver:
        yield receiver


@pytest.fixture
def rig(receiver: Receiver) -> Iterator[HttpRig]:
    rig = HttpRig(receiver)
    yield rig
    rig.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_with_the_ca_and_a_certificate_of_ours(
    rig: HttpRig, server: Certificate, client: Certificate, host: str
) -> None:
    url = f"{rig.receiver.url}{rig.path}".replace("127.0.0.1", host)
    publisher = rig.open(url, ca_file=server.cert, cert_file=client.cert, key_file=client.key)
    publisher.check(TIMEOUT)
    batch = messages(rig, 30, size=50_000)
    assert_all_delivered(publisher.publish(batch, TIMEOUT), 30)
    assert {arrival.body for arrival in rig.arrivals()} == {sent.payload for sent in batch}


def test_a_certificate_that_is_not_trusted_stops_the_use(rig: HttpRig) -> None:
    publisher = rig.open()
    for attempt in (lambda: publisher.publish([message(rig)], TIMEOUT), lambda: publisher.check(TIMEOUT)):
        with pytest.raises(DestinationError, match="certificate verify failed") as refused:
            attempt()
        assert not isinstance(refused.value, DestinationDown)
    assert rig.arrivals() == []


def test_a_certificate_for_another_name_stops_the_use(rig: HttpRig, server: Certificate) -> None:
    url = f"{rig.receiver.url}{rig.path}".replace("127.0.0.1", "2130706433")
    with pytest.raises(DestinationError, match="certificate verify failed"):
        rig.open(url, ca_file=server.cert).check(TIMEOUT)


def test_a_missing_file_is_said(rig: HttpRig) -> None:
    with pytest.raises(DestinationError, match="certificates cannot be read"):
        rig.open(ca_file="missing.pem").check(TIMEOUT)
