"""The Kafka publisher: sends a batch through an idempotent producer and waits for all acknowledgements together."""

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

# `check` requests its metadata. It need not exist and is not created: any answer proves a reachable broker.
_PROBE_TOPIC = "outspark.check"


class KafkaPublisher:
    # See `Delivery`: a broker refuses a message together with every later message that could overtake it.
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
            # Metadata of new topics may take at most half of the time; topics left over wait for the next batch.
            topics = dict.fromkeys(message.topic for message in messages)
            patience = min(timeout, self._options.max_block or timeout)
            refusals = client.resolve_topics(topics, started + min(timeout / 2, patience), started + patience)
        except DestinationDown as down:
            self.close()
            return [Retry(self._describe(down), counted=False)] * len(messages)
        except DestinationError as error:
            self.close()
            # `from None`: the cause may contain credentials.
            raise DestinationError(self._describe(error)) from None
        wires = [self._encoder.encode(message) for message in messages]
        delivery = Delivery(client, self._options, messages, wires, self._limits, self._describe)
        outcomes = delivery.run(refusals, started + timeout - time.monotonic())
        if delivery.abandoned:
            self.close()
        return outcomes

    def check(self, timeout: float) -> None:
        """Ask through a new client: it tells a wrong password from a lost connection, and creates no topic."""
        client = Client({**self._options.client, "allow.auto.create.topics": "false"})
        try:
            client.ask(_PROBE_TOPIC, time.monotonic() + timeout)
        except DestinationError as error:
            raise type(error)(self._describe(error)) from None

    def close(self) -> None:
        # The producer is destroyed with its last reference; its queue is empty between two batches.
        self._client = None
        self._limits.clear()

    def _open(self) -> Client:
        if self._client is not None and self._client.fault() is not None:
            self.close()
        if self._client is None:
            self._client = Client(self._options.client, self._options.topic_patience)
        return self._client

    def _describe(self, error: Exception | str) -> str:
        """The error text with destination and brokers, and without any credentials that the client put into it."""
        text = self._options.hide_secrets(explained(str(error), self._options.client))
        return f"destination {self._name}: Kafka at {self._options.brokers}: {text}"
