"""The webhook publisher: each message is one POST, and the response status determines its outcome."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from datetime import timedelta

from pydantic import Field, SecretStr, model_validator

from outspark.brokers.http.connection import Server
from outspark.brokers.http.endpoint import Endpoint, parse
from outspark.brokers.http.sender import Sender
from outspark.brokers.http.signature import Signer
from outspark.brokers.http.wire import RESERVED, Encoder
from outspark.brokers.loop_thread import LoopThread
from outspark.brokers.options import hide, read_options, tls_context
from outspark.config.fields import Duration, Model
from outspark.config.settings import DestinationSettings
from outspark.errors import DestinationError, SettingsError
from outspark.event import Message
from outspark.outcome import Outcome, Retry


class HttpOptions(Model):
    """The `options` of a destination of type http."""

    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="Sent with each request, e.g. Authorization; win over an event's."
    )
    secret: SecretStr | None = Field(None, description="Sign each request as Standard Webhooks does.")
    concurrency: int = Field(16, ge=1, le=256, description="Requests in flight at once, over different keys.")
    request_timeout: Duration | None = Field(None, description="Default: half of the publish timeout.")
    connect_timeout: Duration | None = Field(None, description="Default: the request timeout.")
    allow_private: bool = Field(False, description="Call addresses that are not public, too.")
    ca_file: str | None = Field(None, description="Path of the CA certificates to trust.")
    cert_file: str | None = Field(None, description="Path of the client's certificate.")
    key_file: str | None = Field(None, description="Path of the client's key.")

    @model_validator(mode="after")
    def _consistent(self) -> HttpOptions:
        taken = sorted(name for name in self.headers if name.lower() in RESERVED)
        if taken:
            raise ValueError(f"headers: {', '.join(taken)} cannot be set here")
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file needs cert_file")
        return self


class HttpPublisher:
    # After a message that was not delivered, no later message of its key in the batch is sent.
    keeps_order = True
    keeps_headers = False

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        self._name = name
        self._options = read_options(HttpOptions, name, settings.options)
        self._endpoint = _endpoint(name, settings.url)
        if self._endpoint.scheme == "http" and (self._options.ca_file or self._options.cert_file):
            raise SettingsError(f"destinations.{name}.options: ca_file and cert_file need an https:// URL")
        self._encoder = self._make_encoder(settings.max_payload)
        self._publish_timeout = settings.publish_timeout.total_seconds()
        self._secrets = _secrets(self._options, self._endpoint)
        self._working: tuple[LoopThread, Server, Sender] | None = None

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        if not messages:
            return []
        thread, _, sender = self._start()
        try:
            return thread.run(sender.publish(messages, timeout), timeout)
        except TimeoutError:
            self.close()
            return [Retry(self._describe("timed out"), counted=False)] * len(messages)

    def check(self, timeout: float) -> None:
        """Open a separate connection and close it without a request: any request to a webhook may have an effect."""
        thread, server, _ = self._start()
        try:
            thread.run(_connect_once(server, timeout), timeout)
        except DestinationError as error:
            raise type(error)(self._describe(str(error))) from None

    def close(self) -> None:
        working, self._working = self._working, None
        if working is not None:
            working[0].stop()

    def _start(self) -> tuple[LoopThread, Server, Sender]:
        if self._working is None:
            server = self._server()
            self._working = LoopThread("outspark-http"), server, self._sender(server)
        return self._working

    def _sender(self, server: Server) -> Sender:
        options = self._options
        request_timeout = _seconds(options.request_timeout, self._publish_timeout / 2)
        return Sender(
            server,
            self._encoder,
            concurrency=options.concurrency,
            connect_timeout=_seconds(options.connect_timeout, request_timeout),
            request_timeout=request_timeout,
            describe=self._describe,
        )

    def _server(self) -> Server:
        tls = self._tls() if self._endpoint.scheme == "https" else None
        return Server(self._endpoint, tls, self._options.allow_private)

    def _tls(self) -> ssl.SSLContext:
        options = self._options
        try:
            return tls_context(options.ca_file, options.cert_file, options.key_file)
        except DestinationError as error:
            raise DestinationError(self._describe(str(error))) from None

    def _make_encoder(self, max_payload: int | None) -> Encoder:
        options = self._options
        fixed = {name: value.get_secret_value() for name, value in options.headers.items()}
        try:
            signer = Signer(options.secret.get_secret_value()) if options.secret is not None else None
        except ValueError as error:
            raise SettingsError(f"destinations.{self._name}.options.secret: {error}") from None
        try:
            return Encoder(self._endpoint, fixed, signer, max_payload)
        except ValueError as error:
            raise SettingsError(f"destinations.{self._name}.options.headers: {error}") from None

    def _describe(self, text: str) -> str:
        """The error text with destination and URL, and without secrets: a server may repeat its request."""
        return f"destination {self._name}: {self._endpoint.origin}: {hide(self._secrets, text)}"


async def _connect_once(server: Server, timeout: float) -> None:
    await server.require_welcome(timeout)


def _secrets(options: HttpOptions, endpoint: Endpoint) -> list[str]:
    """Secrets to hide in error texts. Shorter ones than six characters are not: they occur in ordinary words."""
    given = [value.get_secret_value() for value in options.headers.values()]
    given += [options.secret.get_secret_value()] if options.secret else []
    given += [value.split()[-1] for value in given if value.strip()]  # of `Bearer x`, x
    return [part for part in (*given, *endpoint.secrets) if len(part) >= 6]


def _endpoint(name: str, url: SecretStr | None) -> Endpoint:
    try:
        return parse(url.get_secret_value() if url else "")
    except ValueError as error:
        raise SettingsError(f"destinations.{name}.url: {error}") from None


def _seconds(given: timedelta | None, default: float) -> float:
    return default if given is None else given.total_seconds()
