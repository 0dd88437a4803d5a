"""RabbitMQ over TLS: right certificates deliver, wrong ones are refused before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import aio_pika
import pytest

from outspark.tools.servers.rabbitmq import RabbitMQ
from outspark.tools.servers.server import free_port
from tests.integration.brokers.rabbitmq_rig import write_definitions
from tests.integration.tls import refusals
from tests.integration.tls.certificates import NAME, Certificates, Pair
from tests.integration.tls.passwords import EVERY, WRONG, assert_password_works, encoded
from tests.integration.tls.recorder import HOST, Recorder
from tests.integration.tls.refusals import PASSWORD, PAYLOAD

pytestmark = pytest.mark.needs("rabbitmq")

QUEUE = "order.created"
# Both are 127.0.0.1. A client does not tell a server by which address it came, but by which name, even such a one.
BY_ADDRESS, BY_WRONG_NAME = "127.0.0.1", "2130706433"
assert_delivers = partial(refusals.assert_delivers, "rabbitmq", QUEUE)
assert_refused = partial(refusals.assert_refused, "rabbitmq", QUEUE)


class TlsRabbitMQ(RabbitMQ):
    """Asks for a client's certificate. It has an expired one for whoever does not name it: a node takes seconds."""

    def __init__(self, certificates: Certificates) -> None:
        super().__init__()
        self.tls_port = free_port()
        self._certificates = certificates

    def tls_url(self, host: str = NAME) -> str:
        return f"amqps://guest:{PASSWORD}@{host}:{self.tls_port}/"

    def _prepare(self, folder: Path) -> None:
        super()._prepare(folder)
        self.options = write_definitions(folder / "definitions.json", {"guest": PASSWORD, "relay": EVERY})
        right = _files_of(self._certificates.server)
        by_name = ",".join(f'{{"{name}", [{right}]}}' for name in (NAME, BY_WRONG_NAME))
        options = (
            f'{{cacertfile, "{self._certificates.ca}"}}, {_files_of(self._certificates.expired)}, '
            f"{{verify, verify_peer}}, {{fail_if_no_peer_cert, true}}, {{sni_hosts, [{by_name}]}}"
        )
        listener = f'{{ssl_listeners, [{{"{HOST}", {self.tls_port}}}]}}'
        (folder / "advanced.config").write_text(
            f"[{{rabbit, [{listener}, {{ssl_options, [{options}]}}]}}].\n"
        )


def _files_of(pair: Pair) -> str:
    return f'{{certfile, "{pair.cert}"}}, {{keyfile, "{pair.key}"}}'


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[TlsRabbitMQ]:
    with TlsRabbitMQ(certificates) as server:
        asyncio.run(_declare(server))
        yield server


async def _declare(server: RabbitMQ) -> int:
    url = f"amqp://guest:{PASSWORD}@{HOST}:{server.port}/"
    async with await aio_pika.connect(url) as connection:
        queue = await (await connection.channel()).declare_queue(QUEUE, durable=True)
        return queue.declaration_result.message_count or 0


def _files(certificates: Certificates) -> dict[str, str]:
    pair = certificates.client
    return {"ca_file": str(certificates.ca), "cert_file": str(pair.cert), "key_file": str(pair.key)}


def test_the_right_certificates_deliver(server: TlsRabbitMQ, certificates: Certificates) -> None:
    before = asyncio.run(_declare(server))
    assert_delivers(server.tls_url(), **_files(certificates))
    assert asyncio.run(_declare(server)) == before + 1


def test_an_unknown_ca(server: TlsRabbitMQ, certificates: Certificates) -> None:
    options = {**_files(certificates), "ca_file": str(certificates.wrong_ca)}
    assert_refused(refusals.UNKNOWN_CA, server.tls_url(), **options)


def test_an_expired_certificate(server: TlsRabbitMQ, certificates: Certificates) -> None:
    assert_refused(refusals.EXPIRED, server.tls_url(BY_ADDRESS), **_files(certificates))


def test_a_certificate_for_another_name(server: TlsRabbitMQ, certificates: Certificates) -> None:
    assert_refused(refusals.WRONG_HOST, server.tls_url(BY_WRONG_NAME), **_files(certificates))


def test_no_certificate_of_our_own(server: TlsRabbitMQ, certificates: Certificates) -> None:
    assert_refused(refusals.NO_CLIENT_CERTIFICATE, server.tls_url(), ca_file=str(certificates.ca))


def test_a_certificate_of_ours_that_the_server_does_not_trust(
    server: TlsRabbitMQ, certificates: Certificates
) -> None:
    pair = certificates.stranger
    options = {**_files(certificates), "cert_file": str(pair.cert), "key_file": str(pair.key)}
    assert_refused(refusals.NOT_OURS, server.tls_url(), **options)


def test_a_real_server_without_tls(server: TlsRabbitMQ, certificates: Certificates) -> None:
    url = f"amqps://guest:{PASSWORD}@{NAME}:{server.port}/"
    assert_refused(refusals.NOT_OFFERED, url, ca_file=str(certificates.ca))


@pytest.mark.parametrize("password", [EVERY, WRONG], ids=["right", "wrong"])
def test_a_password_of_all_characters(
    server: TlsRabbitMQ, caplog: pytest.LogCaptureFixture, password: str
) -> None:
    url = f"amqp://relay:{encoded(password)}@{HOST}:{server.port}/"
    assert_password_works("rabbitmq", QUEUE, url, password, caplog)


def test_nothing_secret_is_sent_in_the_clear(certificates: Certificates) -> None:
    with Recorder(b"AMQP\x00\x00\x09\x01") as recorder:
        url = f"amqps://guest:{PASSWORD}@{HOST}:{recorder.port}/"
        assert_refused(refusals.NOT_OFFERED, url, ca_file=str(certificates.ca))
        assert recorder.heard()
        assert PASSWORD.encode() not in recorder.heard()
        assert PAYLOAD not in recorder.heard()
