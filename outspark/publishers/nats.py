"""NATS JetStream: a batch goes out in one go, and the acks come back through one inbox."""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, model_validator

from outspark.errors import DestinationDown, DestinationError
from outspark.event import Message
from outspark.outcome import Dead, Outcome, Retry
from outspark.publishers.nats_connection import Connection
from outspark.publishers.nats_wire import Encoder, Wire
from outspark.publishers.options import hide, read_options, tls_context
from outspark.settings import DestinationSettings, Duration, Model

_DEFAULT_URL = "nats://127.0.0.1:4222"


class NatsOptions(Model):
    """The `options` of a destination of type nats."""

    name: str = Field("outspark", description="Name of the connection in the server's monitoring.")
    user: str | None = Field(None, description="User, if not in the URL.")
    password: SecretStr | None = Field(None, description="Password, if not in the URL.")
    token: SecretStr | None = Field(None, description="Token, if not in the URL.")
    creds: str | None = Field(None, description="Path of a credentials file (JWT and NKey seed).")
    ca_file: str | None = Field(None, description="Path of the CA certificates to trust.")
    cert_file: str | None = Field(None, description="Path of the client's certificate.")
    key_file: str | None = Field(None, description="Path of the client's key.")
    connect_timeout: Duration | None = Field(None, description="Default: the publish timeout.")
    inbox_prefix: str = Field("_INBOX", description="Prefix of the subjects on which acks come back.")
    stream: str | None = Field(None, description="Create this stream at connect if it is missing.")
    subjects: list[str] = Field(default_factory=list, description="What the created stream listens on.")

    @model_validator(mode="after")
    def _consistent(self) -> NatsOptions:
        if (self.stream is None) != (not self.subjects):
            raise ValueError("stream and subjects are given together or not at all")
        return self


class NatsPublisher:
    # JetStream refuses messages one by one, and the later ones of the key go through.
    keeps_order = False

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        self._name = name
        self._options = read_options(NatsOptions, name, settings.options)
        url = settings.url.get_secret_value() if settings.url else _DEFAULT_URL
        self._servers = [server.strip() for server in url.split(",")]
        self._max_payload = settings.max_payload
        self._connection: Connection | None = None
        self._encoder = Encoder(0, None)

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        if not messages:
            return []
        deadline = time.monotonic() + timeout
        try:
            connection = self._connect(timeout)
        except DestinationDown as down:
            return [Retry(str(down), counted=False)] * len(messages)
        encoded = [self._encoder.encode(message) for message in messages]
        wires = [wire for wire in encoded if isinstance(wire, Wire)]
        answers = iter(connection.publish(wires, max(deadline - time.monotonic(), 0.001)))
        if not connection.usable:
            self.close()
        return [wire if isinstance(wire, Dead) else next(answers) for wire in encoded]

    def check(self, timeout: float) -> None:
        connection = self._connect(timeout)
        try:
            connection.check(timeout)
        except DestinationDown as down:
            self.close()
            raise DestinationDown(self._describe(down)) from None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connect(self, timeout: float) -> Connection:
        if self._connection is not None and self._connection.usable:
            return self._connection
        self.close()
        if self._options.connect_timeout is not None:
            timeout = min(timeout, self._options.connect_timeout.total_seconds())
        try:
            connection = Connection(self._client_options(), timeout)
            self._connection = connection
            if self._options.stream is not None:
                connection.ensure_stream(self._options.stream, self._options.subjects, timeout)
        except (DestinationError, TimeoutError) as error:
            self.close()
            kind = type(error) if isinstance(error, DestinationError) else DestinationDown
            # The cause may carry what must not be shown, so it is cut off.
            raise kind(self._describe(error)) from None
        self._encoder = Encoder(connection.max_message, self._max_payload)
        return connection

    def _client_options(self) -> dict[str, Any]:
        options = self._options
        if options.creds is not None and not Path(options.creds).is_file():
            raise DestinationError(f"there is no creds file {options.creds}")
        return {
            "servers": self._servers,
            "name": options.name,
            "user": options.user,
            "password": options.password and options.password.get_secret_value(),
            "token": options.token and options.token.get_secret_value(),
            "user_credentials": options.creds,
            "inbox_prefix": options.inbox_prefix,
            "tls": self._tls(),
        }

    def _tls(self) -> ssl.SSLContext | None:
        options = self._options
        if options.ca_file is None and options.cert_file is None:
            return None
        return tls_context(options.ca_file, options.cert_file, options.key_file)

    def _describe(self, error: Exception) -> str:
        """What went wrong and where, without credentials, whatever the client put into its message."""
        where = ", ".join(_address(server) for server in self._servers)
        text = hide(self._secrets(), str(error) or "timed out")
        return f"destination {self._name}: NATS at {where}: {text}"

    def _secrets(self) -> list[str]:
        options = self._options
        given = [secret.get_secret_value() for secret in (options.password, options.token) if secret]
        for server in self._servers:
            user_info = urlsplit(server).netloc.rpartition("@")[0]
            parts = [user_info, *user_info.split(":")]
            given += [*parts, *map(unquote, parts)]
        return given


def _address(server: str) -> str:
    return urlsplit(server).netloc.rpartition("@")[2] or server.rpartition("@")[2]
