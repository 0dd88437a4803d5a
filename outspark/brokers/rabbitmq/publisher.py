"""The RabbitMQ publisher: sends a batch of persistent, mandatory messages and waits for publisher confirms."""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from datetime import timedelta

from pydantic import Field, SecretStr
from yarl import URL

from outspark.brokers.options import hide, read_options, tls_context
from outspark.brokers.rabbitmq.connection import Connection
from outspark.brokers.rabbitmq.wire import Encoder, Wire
from outspark.config.fields import Duration, Model
from outspark.config.settings import DestinationSettings
from outspark.errors import DestinationDown, DestinationError, SettingsError
from outspark.event import Message
from outspark.outcome import Dead, Outcome, Retry
from outspark.tls import tls_verdict

_DEFAULT_URL = "amqp://127.0.0.1:5672/"
_PORTS = {"amqp": 5672, "amqps": 5671}


class RabbitMQOptions(Model):
    """The `options` of a destination of type rabbitmq."""

    exchange: str = Field(
        "",
        max_length=127,
        pattern=r"^[a-zA-Z0-9-_.:@#,/+ ]*$",
        description="Exchange to publish to; the default exchange takes the topic for the name of a queue.",
    )
    name: str = Field("outspark", description="Name of the connection in the broker's monitoring.")
    user: str | None = Field(None, description="User, if not in the URL.")
    password: SecretStr | None = Field(None, description="Password, if not in the URL.")
    ca_file: str | None = Field(None, description="Path of the CA certificates to trust.")
    cert_file: str | None = Field(None, description="Path of the client's certificate.")
    key_file: str | None = Field(None, description="Path of the client's key.")
    connect_timeout: Duration | None = Field(None, description="Default: the publish timeout.")
    heartbeat: Duration = Field(
        timedelta(seconds=60), description="How soon an idle connection that is dead is noticed."
    )


class RabbitMQPublisher:
    # The broker returns or refuses messages one by one, and accepts later ones of the same key.
    keeps_order = False
    keeps_headers = False

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        self._name = name
        self._options = read_options(RabbitMQOptions, name, settings.options)
        url = settings.url.get_secret_value() if settings.url else _DEFAULT_URL
        self._servers = [self._server(server.strip()) for server in url.split(",")]
        self._max_payload = settings.max_payload
        self._connection: Connection | None = None
        self._encoder = Encoder("", 0, None)

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
        if self._encoder.max_payload is None:
            self._encoder.max_payload = connection.max_payload
        if not connection.usable:
            self.close()
        return [wire if isinstance(wire, Dead) else next(answers) for wire in encoded]

    def check(self, timeout: float) -> None:
        connection = self._connect(timeout)
        try:
            connection.check(timeout)
        except (DestinationError, TimeoutError) as error:
            self.close()
            raise self._describe(error) from None

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
            connection = self._open_any(timeout)
        except (DestinationError, TimeoutError) as error:
            # `from None`: the cause may contain credentials.
            raise self._describe(error) from None
        self._connection = connection
        self._encoder = Encoder(self._options.exchange, connection.frame_max, self._max_payload)
        return connection

    def _open_any(self, timeout: float) -> Connection:
        """Connect to the first server that answers. Each gets a share of the time: one may drop packets silently."""
        tls, share = self._tls(), timeout / len(self._servers)
        for server in self._servers[:-1]:
            try:
                return self._open(server, tls, share)
            except (DestinationDown, TimeoutError):
                continue
        return self._open(self._servers[-1], tls, share)

    def _open(self, server: URL, tls: ssl.SSLContext | None, timeout: float) -> Connection:
        try:
            return Connection(server, tls, self._options.exchange, timeout)
        except DestinationDown as down:
            if server.scheme != "amqps" or isinstance(down.__cause__, TimeoutError) or not server.host:
                raise
            context = tls or tls_context(None, None, None)
            fault = tls_verdict(server.host, server.port or _PORTS["amqps"], context)
            if fault is None:
                raise
            raise DestinationError(fault) from down

    def _server(self, text: str) -> URL:
        try:
            url = URL(text)
        except ValueError:
            url = URL()
        if url.scheme not in _PORTS or not url.host:
            raise SettingsError(
                f"destinations.{self._name}.url is not a RabbitMQ URL; write amqp://user:password@host:5672/vhost "
                "or amqps://…, several servers separated by commas"
            )
        options = self._options
        if url.scheme == "amqp" and (options.ca_file or options.cert_file):
            raise SettingsError(
                f"destinations.{self._name}.options: ca_file and cert_file need an amqps:// URL"
            )
        if options.user is not None:
            url = url.with_user(options.user)
        if options.password is not None:
            url = url.with_password(options.password.get_secret_value())
        seconds = max(1, round(options.heartbeat.total_seconds()))
        return url.update_query(name=options.name, heartbeat=seconds)

    def _tls(self) -> ssl.SSLContext | None:
        options = self._options
        if options.ca_file is None and options.cert_file is None:
            return None
        return tls_context(options.ca_file, options.cert_file, options.key_file)

    def _describe(self, error: DestinationError | TimeoutError) -> DestinationError:
        """The error with destination and servers, and without any credentials that the client put into it."""
        where = ", ".join(f"{server.host}:{server.port or _PORTS[server.scheme]}" for server in self._servers)
        secrets = [secret for server in self._servers for secret in (server.raw_password, server.password)]
        text = hide(filter(None, secrets), str(error) or "timed out")
        kind = type(error) if isinstance(error, DestinationError) else DestinationDown
        return kind(f"destination {self._name}: RabbitMQ at {where}: {text}")
