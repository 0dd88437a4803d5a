"""The Redis Streams publisher: sends a batch as pipelined XADD commands and reads one answer per message."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, model_validator
from redis.connection import SSLConnection, parse_url

from outspark.brokers.options import hide, read_options
from outspark.brokers.redis.batch import Batch
from outspark.brokers.redis.servers import Servers
from outspark.brokers.redis.wire import Encoder
from outspark.config.fields import Duration, Model
from outspark.config.settings import DestinationSettings
from outspark.errors import DestinationDown, DestinationError, SettingsError
from outspark.event import Message
from outspark.outcome import Outcome, Retry

_DEFAULT_URL = "redis://127.0.0.1:6379"
_BETWEEN_SERVERS = re.compile(r",\s*(?=\w+://)")
_IN_URL = {"connection_class", "db", "host", "password", "path", "port", "username"}


class RedisOptions(Model):
    """The `options` of a destination of type redis."""

    name: str = Field("outspark", pattern=r"^[!-~]+$", description="Name of the connection in CLIENT LIST.")
    username: str | None = Field(None, description="ACL user, if not in the URL.")
    password: SecretStr | None = Field(None, description="Password, if not in the URL.")
    maxlen: int | None = Field(None, ge=1, description="Trim each stream to about this many entries.")
    exact: bool = Field(False, description="Trim to exactly `maxlen` entries, which costs Redis more.")
    ca_file: str | None = Field(None, description="Path of the CA certificates to trust.")
    cert_file: str | None = Field(None, description="Path of the client's certificate.")
    key_file: str | None = Field(None, description="Path of the client's key.")
    check_hostname: bool = Field(True, description="Whether the certificate must name the host.")
    connect_timeout: Duration | None = Field(None, description="Default: the publish timeout.")

    @model_validator(mode="after")
    def _consistent(self) -> RedisOptions:
        if self.exact and self.maxlen is None:
            raise ValueError("exact needs maxlen")
        return self


class RedisPublisher:
    # Redis executes the commands of a pipeline one by one. After a refused XADD (WRONGTYPE and NOPERM for the stream,
    # OOM and READONLY for the moment), later ones of the same key may succeed: they may be for other streams, or the
    # cause is over. MULTI would not help, because EXEC continues after a failed command.
    keeps_order = False
    keeps_headers = False

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        self._name = name
        self._options = options = read_options(RedisOptions, name, settings.options)
        url = settings.url.get_secret_value() if settings.url else _DEFAULT_URL
        self._urls = _BETWEEN_SERVERS.split(url)
        self._servers = Servers(
            [_server(name, each, options) for each in self._urls],
            options.name,
            options.connect_timeout.total_seconds() if options.connect_timeout else None,
        )
        self._encoder = Encoder(options.maxlen, options.exact, settings.max_payload)

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        if not messages:
            return []
        self._require_files()
        batch = Batch(messages, self._servers, self._encoder, time.monotonic() + timeout)
        try:
            batch.run()
        except DestinationError as error:
            self._servers.start_over()
            raise DestinationError(self._describe(error)) from None
        if batch.down or batch.wrong_server:
            self._servers.start_over()
        if batch.down is None:
            return [outcome for outcome in batch.outcomes if outcome is not None]
        unknown = Retry(self._describe(batch.down), counted=False)
        return [outcome or unknown for outcome in batch.outcomes]

    def check(self, timeout: float) -> None:
        self._require_files()
        try:
            self._servers.check(time.monotonic() + timeout)
        except DestinationError as error:
            self._servers.start_over()
            kind = DestinationDown if isinstance(error, DestinationDown) else DestinationError
            # `from None`: the cause may contain credentials.
            raise kind(self._describe(error)) from None

    def close(self) -> None:
        self._servers.close()

    def _require_files(self) -> None:
        for option in ("ca_file", "cert_file", "key_file"):
            path = getattr(self._options, option)
            # The client would report a missing file as a failed connection, which a publisher would retry.
            if path is not None and not Path(path).is_file():
                raise DestinationError(f"destination {self._name}: there is no {option} {path}")

    def _describe(self, error: Exception) -> str:
        """The error text with destination and servers, and without any credentials that the client put into it."""
        text = hide(self._secrets(), str(error))
        return f"destination {self._name}: Redis at {', '.join(map(_address, self._urls))}: {text}"

    def _secrets(self) -> list[str]:
        given = [self._options.password.get_secret_value()] if self._options.password else []
        for url in self._urls:
            password = urlsplit(url).password or ""
            given += [password, unquote(password)]
        return given


def _server(name: str, url: str, options: RedisOptions) -> dict[str, Any]:
    """The arguments for the client's connection."""
    try:
        server: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError:
        # `from None`: the original error may quote a part of the password.
        raise SettingsError(
            f"destinations.{name}.url must be redis://user:password@host:6379/0, rediss://… or unix:///path; "
            "in a password, characters such as @ : / # are percent-encoded"
        ) from None
    if unknown := sorted(set(server) - _IN_URL):
        raise SettingsError(
            f"destinations.{name}.url: unknown parameter {unknown[0]!r}; everything but the database goes into options"
        )
    if options.username is not None:
        server["username"] = options.username
    if options.password is not None:
        server["password"] = options.password.get_secret_value()
    secure = server.get("connection_class") is SSLConnection
    if not secure and (options.ca_file or options.cert_file):
        raise SettingsError(f"destinations.{name}.options: ca_file and cert_file need a rediss:// URL")
    if secure:
        server |= {
            "ssl_ca_certs": options.ca_file,
            "ssl_certfile": options.cert_file,
            "ssl_keyfile": options.key_file,
            "ssl_check_hostname": options.check_hostname,
        }
    return server


def _address(url: str) -> str:
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] or parts.path
