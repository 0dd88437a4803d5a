"""What settings know of each broker: its type, the schemes of its URLs, and what its extra installs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

DestinationType = Literal["kafka", "nats", "rabbitmq", "redis", "http", "stdout", "null"]


@dataclass(frozen=True, slots=True)
class Broker:
    url: str
    """An example of its URL, for error messages."""
    module: str
    """What the extra of the same name installs."""
    schemes: tuple[str, ...] = ()
    """Schemes of its URLs besides the one that is its type."""


BROKERS: Final[Mapping[str, Broker]] = {
    "kafka": Broker("kafka://host:9092", "confluent_kafka"),
    "nats": Broker("nats://host:4222", "nats", ("tls",)),
    "rabbitmq": Broker("amqp://user:password@host:5672", "aio_pika", ("amqp", "amqps")),
    "redis": Broker("redis://host:6379", "redis", ("rediss",)),
    "http": Broker("https://host/path", "httpcore", ("https",)),
}
"""The types that need a URL; stdout and null do not."""

_TYPES: Final = {scheme: name for name, broker in BROKERS.items() for scheme in broker.schemes}


def type_of(scheme: str) -> str:
    """The type that a URL with this scheme is for; the scheme itself where no broker claims it."""
    return _TYPES.get(scheme, scheme)
