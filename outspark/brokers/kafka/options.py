"""The configuration of a Kafka destination: brokers from its URL, librdkafka's properties from its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import Producer

from outspark.brokers.kafka import properties
from outspark.config import durations
from outspark.config.settings import DestinationSettings
from outspark.errors import SettingsError

_DEFAULT_URL = "kafka://127.0.0.1:9092"

_DEFAULTS = {
    "client.id": "outspark",
    "partitioner": "murmur2_random",  # the same partition for a key as the Java clients choose
    "message.max.bytes": "1000000",
    "batch.size": "1000000",
    "batch.num.messages": "10000",
    "topic.metadata.propagation.max.ms": "3000",
    "reconnect.backoff.max.ms": "1000",
    "socket.keepalive.enable": "true",
}
_FIXED = {
    "acks": "all",
    "enable.idempotence": "true",
    # The producer sends nothing before the flush at the end of a pass, and only the publish timeout ends the wait.
    "linger.ms": "900000",
    "message.timeout.ms": "0",
}
_ALLOWED = {
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
    "enable.idempotence": ("true",),
    "partitioner": (
        "murmur2_random",
        "murmur2",
        "consistent_random",
        "consistent",
        "fnv1a_random",
        "fnv1a",
    ),
}
_WHY_ALLOWED = {
    "acks": "anything less loses events",
    "request.required.acks": "anything less loses events",
    "enable.idempotence": "without it retries duplicate and reorder events",
    "partitioner": "a key must always lead to the same partition",
}
_BY_URL = "the brokers are set in the destination's url"
_WHOLE_BATCH = "a batch is sent immediately and as a whole"
_BY_TIMEOUT = "the destination's publish_timeout decides"
_REFUSED = {
    "bootstrap.servers": _BY_URL,
    "metadata.broker.list": _BY_URL,
    "linger.ms": _WHOLE_BATCH,
    "queue.buffering.max.ms": _WHOLE_BATCH,
    "message.timeout.ms": _BY_TIMEOUT,
    "delivery.timeout.ms": _BY_TIMEOUT,
    "delivery.report.only.error": "outcomes depend on it",
    "enable.gapless.guarantee": "one refused event would block all others",
    "transactional.id": "an outbox needs no Kafka transactions",
}


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """`client` is the complete configuration of the client; sizes are in bytes."""

    brokers: str
    client: Mapping[str, str] = field(repr=False)
    max_message: int
    max_batch: int
    max_batch_count: int
    topic_patience: float
    max_block: float | None
    """Seconds in which the brokers must answer metadata requests; None is the publish timeout."""

    def hide_secrets(self, text: str) -> str:
        return properties.without_secrets(text, self.client)


def kafka_options(name: str, settings: DestinationSettings) -> KafkaOptions:
    """Read the options; a SettingsError names the fault but never a secret value."""
    where = f"destinations.{name}"
    given = dict(properties.flat(where, settings.options))
    max_block = _max_block(name, given.pop("max_block", None))
    for option, value in given.items():
        _check(name, option, value)
    url = _DEFAULT_URL if settings.url is None else settings.url.get_secret_value()
    brokers = properties.brokers(where, url)
    aliases = {option: value for option, value in given.items() if option != "request.required.acks"}
    client = {**_DEFAULTS, **aliases, **_FIXED}
    properties.try_out(where, client, Producer)
    return KafkaOptions(
        brokers=brokers,
        client={**client, "bootstrap.servers": brokers},
        max_message=int(client["message.max.bytes"]),
        max_batch=min(int(client["batch.size"]), int(client["message.max.bytes"])),
        max_batch_count=int(client["batch.num.messages"]),
        topic_patience=int(client["topic.metadata.propagation.max.ms"]) / 1000,
        max_block=max_block,
    )


def _max_block(name: str, value: str | None) -> float | None:
    """Outspark's own option: librdkafka has no equivalent of the Java client's `max.block.ms`."""
    if value is None:
        return None
    try:
        return durations.parse(value).total_seconds()
    except ValueError as error:
        raise SettingsError(f"destinations.{name}.options: max_block: {error}") from None


def _check(name: str, option: str, value: str) -> None:
    where = f"destinations.{name}.options: {option}"
    if option in _REFUSED:
        raise SettingsError(f"{where} cannot be set: {_REFUSED[option]}")
    if option in _ALLOWED and value.lower() not in _ALLOWED[option]:
        allowed = ", ".join(_ALLOWED[option])
        raise SettingsError(f"{where} = {value!r} must be one of: {allowed}; {_WHY_ALLOWED[option]}")
