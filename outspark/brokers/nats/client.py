"""The NATS client: its options, how publisher and feed connect with them, and the classification of its errors."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import nats.errors
from nats.aio.client import Client
from nats.js.errors import APIError
from pydantic import Field, SecretStr

from outspark.brokers.nats.tls import TlsNotOffered, TlsRefused
from outspark.brokers.options import hide, tls_context
from outspark.config.fields import Duration, Model
from outspark.errors import DestinationDown, DestinationError
from outspark.tls import tls_fault

_TLS_SCHEMES = ("tls", "wss")


class NatsLogin(Model):
    """Options that publishers and feeds have in common."""

    name: str = Field("outspark", description="Name of the connection in the server's monitoring.")
    user: str | None = Field(None, description="User, if not in the URL.")
    password: SecretStr | None = Field(None, description="Password, if not in the URL.")
    token: SecretStr | None = Field(None, description="Token, if not in the URL.")
    creds: str | None = Field(None, description="Path of a credentials file (JWT and NKey seed).")
    ca_file: str | None = Field(None, description="Path of the CA certificates to trust.")
    cert_file: str | None = Field(None, description="Path of the client's certificate.")
    key_file: str | None = Field(None, description="Path of the client's key.")
    connect_timeout: Duration | None = Field(None, description="Default: the publish timeout.")
    inbox_prefix: str = Field("_INBOX", description="Prefix of the subjects on which answers come back.")


class NatsAddress:
    """The servers and the login."""

    def __init__(self, url: str, login: NatsLogin) -> None:
        self._servers = [server.strip() for server in url.split(",")]
        self._login = login

    def client_options(self) -> dict[str, Any]:
        """Arguments for the client's `connect`; DestinationError if a file is missing."""
        login = self._login
        if login.creds is not None and not Path(login.creds).is_file():
            raise DestinationError(f"there is no creds file {login.creds}")
        return {
            "servers": self._servers,
            "name": login.name,
            "user": login.user,
            "password": login.password and login.password.get_secret_value(),
            "token": login.token and login.token.get_secret_value(),
            "user_credentials": login.creds,
            "inbox_prefix": login.inbox_prefix,
            "tls": self._tls(),
        }

    def describe(self, error: Exception | str) -> str:
        """The error text with the servers, and without any credentials that the client put into it."""
        where = ", ".join(_host(server) for server in self._servers)
        return f"NATS at {where}: {hide(self._secrets(), str(error) or 'timed out')}"

    def _tls(self) -> ssl.SSLContext | None:
        """TLS for all servers if one server needs it: they receive the same password and the same events."""
        login = self._login
        wanted = any(urlsplit(server).scheme in _TLS_SCHEMES for server in self._servers)
        if not wanted and login.ca_file is None and login.cert_file is None:
            return None
        return tls_context(login.ca_file, login.cert_file, login.key_file)

    def _secrets(self) -> Sequence[str]:
        given = [secret.get_secret_value() for secret in (self._login.password, self._login.token) if secret]
        for server in self._servers:
            user_info = urlsplit(server).netloc.rpartition("@")[0]
            parts = [user_info, *user_info.split(":")]
            given += [*parts, *map(unquote, parts)]
        return given


def _host(server: str) -> str:
    return urlsplit(server).netloc.rpartition("@")[2] or server.rpartition("@")[2]


ERRORS: Final = (nats.errors.Error, APIError, OSError, TimeoutError)
CLOSE_TIMEOUT: Final = 1.0

_FORBIDDEN = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"')
_REFUSED = ("authorization violation", "authentication", "credentials", "revoked")


class Faults:
    """The last few errors that a client reports asynchronously."""

    def __init__(self) -> None:
        self._last: list[Exception] = []

    def add(self, error: Exception) -> None:
        self._last = [*self._last[-9:], error]

    def last(self) -> Exception | None:
        return self._last[-1] if self._last else None

    def forbidden(self, verb: str, prefix: str) -> bool:
        """Whether the server forbade to `publish` to, or have a `subscription` on, a subject with this prefix."""
        violations = (violation(fault) for fault in self._last)
        return any(found and found[0] == verb and found[1].startswith(prefix.lower()) for found in violations)


def violation(error: Exception) -> tuple[str, str] | None:
    """What was forbidden, `publish` or `subscription`, and the subject, which the client reports in lower case."""
    found = _FORBIDDEN.search(str(error))
    return None if found is None else (found[1], found[2])


async def connect(client: Client, options: Mapping[str, Any], timeout: float, **callbacks: Any) -> None:
    """Connect; DestinationError if another try cannot help, or an error of the client: see `as_destination_error`."""
    try:
        async with asyncio.timeout(timeout):
            await client.connect(
                **options,
                # One try per server and no buffering across a reconnect: the publisher or feed makes a new connection,
                # so that no message is sent later that was answered with Retry.
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                pending_size=0,
                connect_timeout=whole_seconds(timeout),
                **callbacks,
            )
    except ModuleNotFoundError as error:
        raise DestinationError("a creds file needs another package: pip install 'nats-py[nkeys]'") from error


def as_destination_error(error: Exception) -> DestinationError:
    """DestinationError if the server refused the login or TLS failed, otherwise DestinationDown."""
    if fault := tls_fault(error):
        return DestinationError(fault)
    reason = text(error)
    if isinstance(error, ssl.SSLError | TlsNotOffered | TlsRefused) or any(
        word in reason.lower() for word in _REFUSED
    ):
        return DestinationError(reason)
    return DestinationDown(reason)


def text(error: BaseException) -> str:
    return str(error).removeprefix("nats: ").strip("'") or "timed out"


def whole_seconds(seconds: float) -> int:
    """The client accepts whole seconds only; callers enforce a shorter timeout themselves."""
    return max(1, round(seconds))
