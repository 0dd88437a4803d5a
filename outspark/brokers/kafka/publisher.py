"""Kafka: a batch goes out at once through an idempotent producer, and its acknowledgements are awaited together."""

from __future__ import annotations

import time
from collections.abc import Sequence

from outspark.brokers.kafka.client import Client
from outspark.brokers.kafka.delivery import Delivery
from outspark.brokers.kafka.options import kafka_options
from outspark.brokers.kafka.tls import explained
from outspark.brokers.kafka.wire import Encoder
from outspark.config.settings import DestinationSettings
from outspark.errors import DestinationDown, DestinationError
from outspark.event import Message
from outspark.outcome import Outcome, Retry

# Asked for by `check`. It need not exist, and is not created: whatever the brokers answer, they are there.
_PROBE_TOPIC = "outspark.check"


class KafkaPublisher:
    # See `Delivery`: what a broker refuses, it refuses together with all that could overtake it.
    keeps_order = True
    keeps_headers = True

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        self._name = name
        self._options = kafka_options(name, settings)
        self._encoder = Encoder(settings.max_payload)
        self._client: Client | None = None
        self._limits: dict[str, int] = {}

    def publish(self, messages: Sequence[Message], timeout: float) -> list[Outcome]:
        if not messages:
            return []
        started = time.monotonic()
        try:
            client = self._open()
            # Half of the time at most goes to questions about new topics; the rest of them come next time.
            topics = dict.fromkeys(message.topic for message in messages)
            patience = min(timeout, self._options.max_block or timeout)
            refusals = client.learn(topics, started + min(timeout / 2, patience), started + patience)
        except DestinationDown as down:
            self.close()
            return [Retry(self._describe(down), counted=False)] * len(messages)
        except DestinationError as error:
            self.close()
            # The cause may carry what must not be shown, so it is cut off.
            raise DestinationError(self._describe(error)) from None
        wires = [self._encoder.encode(message) for message in messages]
        delivery = Delivery(client, self._options, messages, wires, self._limits, self._describe)
        outcomes = delivery.run(refusals, started + timeout - time.monotonic())
        if delivery.given_up:
            self.close()
        return outcomes

    def check(self, timeout: float) -> None:
        """Through a client of its own: it tells a wrong password from a lost connection, and creates no topic."""
        client = Client({**self._options.client, "allow.auto.create.topics": "false"})
        try:
            client.ask(_PROBE_TOPIC, time.monotonic() + timeout)
        except DestinationError as error:
            raise type(error)(self._describe(error)) from None

    def close(self) -> None:
        # The producer ends with its last reference; nothing is queued between two batches.
        self._client = None
        self._limits.clear()

    def _open(self) -> Client:
        if self._client is not None and self._client.fault() is not None:
            self.close()
        if self._client is None:
            self._client = Client(self._options.client, self._options.topic_patience)
        return self._client

    def _describe(self, error: Exception | str) -> str:
        """What went wrong and where, without credentials, whatever the client put into its message."""
        text = self._options.hide_secrets(explained(str(error), self._options.client))
        return f"destination {self._name}: Kafka at {self._options.brokers}: {text}"
