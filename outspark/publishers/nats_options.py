"""How to get to NATS, for everybody who goes there: servers, credentials, TLS, and what must not be shown of them."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr

from outspark.errors import DestinationError
from outspark.publishers.options import hide, tls_context
from outspark.settings.model import Duration, Model

_TLS_SCHEMES = ("tls", "wss")


class NatsLogin(Model):
    """Options of whatever connects to NATS."""

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
    """Where to connect and as whom."""

    def __init__(self, url: str, login: NatsLogin) -> None:
        self._servers = [server.strip() for server in url.split(",")]
        self._login = login

    def client_options(self) -> dict[str, Any]:
        """For the client's `connect`; DestinationError when a file is not there."""
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
        """What went wrong and where, without credentials, whatever the client put into its message."""
        where = ", ".join(_host(server) for server in self._servers)
        return f"NATS at {where}: {hide(self._secrets(), str(error) or 'timed out')}"

    def _tls(self) -> ssl.SSLContext | None:
        """For all servers once it is wanted for one: they have the same password and the same events."""
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
