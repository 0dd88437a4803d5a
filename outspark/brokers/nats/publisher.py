"""The NATS JetStream publisher: sends a batch without waiting in between, and receives the acks on one inbox."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pydantic import Field, model_validator

from outspark.brokers.nats.client import NatsAddress, NatsLogin
from outspark.brokers.nats.connection import Connection
from outspark.brokers.nats.wire import Encoder, Wire
from outspark.brokers.options import read_options
from outspark.config.settings import DestinationSettings
from outspark.errors import DestinationDown, DestinationError
from outspark.event import Message
from outspark.outcome import Dead, Outcome, Retry

_DEFAULT_URL = "nats://127.0.0.1:4222"


class NatsOptions(NatsLogin):
    """The `options` of a destination of type nats."""

    stream: str | None = Field(None, description="Create this stream at connect if it is missing.")
    subjects: list[str] = Field(default_factory=list, description="What the created stream listens on.")

    @model_validator(mode="after")
    def _consistent(self) -> NatsOptions:
        if (self.stream is None) != (not self.subjects):
            raise ValueError("stream and subjects are given together or not at all")
        return self


class NatsPublisher:
    # JetStream refuses messages one by one, and accepts later ones of the same key.
    keeps_order = False
    keeps_headers = False

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        self._name = name
        self._options = read_options(NatsOptions, name, settings.options)
        url = settings.url.get_secret_value() if settings.url else _DEFAULT_URL
        self._address = NatsAddress(url, self._options)
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
            connection = Connection(self._address.client_options(), timeout)
            self._connection = connection
            if self._options.stream is not None:
                connection.ensure_stream(self._options.stream, self._options.subjects, timeout)
        except (DestinationError, TimeoutError) as error:
            self.close()
            kind = type(error) if isinstance(error, DestinationError) else DestinationDown
            # `from None`: the cause may contain credentials.
            raise kind(self._describe(error)) from None
        self._encoder = Encoder(connection.max_message, self._max_payload)
        return connection

    def _describe(self, error: Exception) -> str:
        return f"destination {self._name}: {self._address.describe(error)}"
