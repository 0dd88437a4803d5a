"""PostgreSQL over TLS, as the command line and a driver connect: right certificates do, wrong ones are told apart."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import closing

import pytest

from outspark.cli.exits import DatabaseUnreachable
from outspark.cli.tables import connect
from outspark.config.settings import Settings, SourceSettings
from outspark.errors import DatabaseRefused
from outspark.spark.inbox import InboxApp
from outspark.spark.monitor import Monitor
from outspark.tools.servers.postgres import Postgres
from tests.integration.tls import refusals
from tests.integration.tls.certificates import Certificates
from tests.integration.tls.passwords import EVERY, WRONG, assert_not_echoed
from tests.integration.tls.postgres_tls_rig import TlsPostgres
from tests.integration.tls.recorder import HOST, Recorder
from tests.integration.tls.refusals import PASSWORD

pytestmark = pytest.mark.needs("postgres-tls")


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[TlsPostgres]:
    with TlsPostgres(certificates, certificates.server, PASSWORD) as server:
        server.make_users()
        yield server


@pytest.fixture(scope="module")
def expired(certificates: Certificates) -> Iterator[TlsPostgres]:
    with TlsPostgres(certificates, certificates.expired, PASSWORD) as server:
        yield server


def _files(certificates: Certificates) -> dict[str, str]:
    pair = certificates.client
    return {"sslrootcert": str(certificates.ca), "sslcert": str(pair.cert), "sslkey": str(pair.key)}


def _assert_refused(reason: str, url: str) -> None:
    with pytest.raises(DatabaseUnreachable, match=reason) as refused:
        with connect("source", "shop", SourceSettings(url=url)):
            pass
    assert PASSWORD not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("user", ["relay", "reader"])
def test_the_right_certificates_connect(server: TlsPostgres, certificates: Certificates, user: str) -> None:
    url = server.tls_url(user, PASSWORD, **_files(certificates))
    with connect("source", "shop", SourceSettings(url=url)) as conn:
        (row,) = conn.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchall()
    assert row == (True,)


def test_an_unknown_ca(server: TlsPostgres, certificates: Certificates) -> None:
    files = {**_files(certificates), "sslrootcert": str(certificates.wrong_ca)}
    _assert_refused(refusals.UNKNOWN_CA, server.tls_url("relay", PASSWORD, **files))


def test_an_expired_certificate(expired: TlsPostgres, certificates: Certificates) -> None:
    _assert_refused(refusals.EXPIRED, expired.tls_url("relay", PASSWORD, **_files(certificates)))


def test_a_certificate_for_another_name(server: TlsPostgres, certificates: Certificates) -> None:
    url = server.tls_url("relay", PASSWORD, host="elsewhere.example", **_files(certificates))
    _assert_refused('does not match host name "elsewhere.example"', url)


def test_no_certificate_of_our_own(server: TlsPostgres, certificates: Certificates) -> None:
    url = server.tls_url("relay", PASSWORD, sslrootcert=str(certificates.ca), sslcert="none")
    _assert_refused("requires a valid client certificate", url)


def test_a_certificate_of_ours_that_the_server_does_not_trust(
    server: TlsPostgres, certificates: Certificates
) -> None:
    pair = certificates.stranger
    files = {**_files(certificates), "sslcert": str(pair.cert), "sslkey": str(pair.key)}
    _assert_refused("unknown ca", server.tls_url("relay", PASSWORD, **files))


def test_a_real_server_without_tls(postgres_server: Postgres, certificates: Certificates) -> None:
    url = f"{postgres_server.url()}?sslmode=verify-full&sslrootcert={certificates.ca}"
    _assert_refused("server does not support SSL, but SSL was required", url)


def _relay(url: str) -> Monitor:
    given = {"sources": {"shop": {"url": url}}, "destinations": {"nowhere": {"type": "null"}}}
    return Monitor(Settings.model_validate(given), "one", "outspark_one")


def _assert_told_by_a_relay(reason: str, url: str) -> None:
    """By its start, which it refuses, and by its readiness."""
    with closing(_relay(url)) as relay:
        with pytest.raises(DatabaseRefused, match=reason) as refused:
            relay.preflight()
        (problem,) = relay.problems()
    for said in (str(refused.value), problem):
        assert reason in said
        assert PASSWORD not in said
        assert "\n" not in said


def test_a_relay_tells_an_unknown_ca(server: TlsPostgres, certificates: Certificates) -> None:
    files = {**_files(certificates), "sslrootcert": str(certificates.wrong_ca)}
    _assert_told_by_a_relay(refusals.UNKNOWN_CA, server.tls_url("relay", PASSWORD, **files))


def test_a_relay_tells_an_expired_certificate(expired: TlsPostgres, certificates: Certificates) -> None:
    _assert_told_by_a_relay(refusals.EXPIRED, expired.tls_url("relay", PASSWORD, **_files(certificates)))


def test_a_relay_tells_a_certificate_for_another_name(
    server: TlsPostgres, certificates: Certificates
) -> None:
    url = server.tls_url("relay", PASSWORD, host="elsewhere.example", **_files(certificates))
    _assert_told_by_a_relay('does not match host name "elsewhere.example"', url)


def test_an_inbox_tells_an_expired_certificate(expired: TlsPostgres, certificates: Certificates) -> None:
    url = expired.tls_url("relay", PASSWORD, **_files(certificates))
    feed = {"type": "nats", "url": "nats://127.0.0.1:1", "topics": ["a"], "stream": "a"}
    given = {"inboxes": {"shop": {"url": url, "group": "billing", "feed": feed}}}
    inbox = InboxApp(Settings.model_validate(given), ["shop"], ["consume"])
    try:
        with pytest.raises(DatabaseRefused, match=refusals.EXPIRED):
            inbox._preflight()
    finally:
        inbox._ended(all_lanes=True)


@pytest.mark.parametrize("password", [EVERY, WRONG], ids=["right", "wrong"])
def test_a_password_of_all_characters(
    server: TlsPostgres, certificates: Certificates, caplog: pytest.LogCaptureFixture, password: str
) -> None:
    caplog.set_level(logging.DEBUG)
    settings = SourceSettings(url=server.tls_url("odd", password, sslrootcert=str(certificates.ca)))
    said = ""
    try:
        with connect("source", "shop", settings) as conn:
            assert conn.execute("SELECT current_user").fetchone() == ("odd",)
        assert password == EVERY
    except DatabaseUnreachable as error:
        assert password == WRONG
        said = "".join(traceback.format_exception(error))
    assert_not_echoed(password, said, repr(settings), str(settings), caplog.text)


def test_nothing_secret_is_sent_in_the_clear(certificates: Certificates) -> None:
    with Recorder(b"N") as recorder:
        url = f"postgresql://relay:{PASSWORD}@{HOST}:{recorder.port}/shop?sslmode=verify-full"
        _assert_refused("does not support SSL", f"{url}&sslrootcert={certificates.ca}")
        assert len(recorder.heard()) == 8
        assert b"relay" not in recorder.heard()
