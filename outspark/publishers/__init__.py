"""Publishers bring batches of messages to a destination. A broker's client is imported when it is used."""

from __future__ import annotations

from outspark.errors import ExtraMissing
from outspark.publishers.publisher import Publisher
from outspark.settings import ClaimCheckSettings, DestinationSettings

__all__ = ["Publisher", "open_publisher"]


def open_publisher(name: str, settings: DestinationSettings) -> Publisher:
    """The publisher of destination `name`. No I/O yet; SettingsError when its options make no sense."""
    try:
        publisher = _open(name, settings)
    except ModuleNotFoundError as error:
        raise ExtraMissing(f"a destination of type {settings.type}", settings.type) from error
    return (
        publisher
        if settings.claim_check is None
        else _with_claim_check(name, publisher, settings.claim_check)
    )


def _with_claim_check(name: str, publisher: Publisher, settings: ClaimCheckSettings) -> Publisher:
    try:
        from outspark.publishers.claim_check import ClaimCheckPublisher
    except ModuleNotFoundError as error:
        raise ExtraMissing("a claim check", "claimcheck") from error
    return ClaimCheckPublisher(name, publisher, settings)


def _open(name: str, settings: DestinationSettings) -> Publisher:
    match settings.type:
        case "kafka":
            from outspark.publishers.kafka import KafkaPublisher

            return KafkaPublisher(name, settings)
        case "nats":
            from outspark.publishers.nats import NatsPublisher

            return NatsPublisher(name, settings)
        case "rabbitmq":
            from outspark.publishers.rabbitmq import RabbitMQPublisher

            return RabbitMQPublisher(name, settings)
        case "redis":
            from outspark.publishers.redis import RedisPublisher

            return RedisPublisher(name, settings)
        case "http":
            from outspark.publishers.http import HttpPublisher

            return HttpPublisher(name, settings)
        case "stdout":
            from outspark.publishers.stdout import StdoutPublisher

            return StdoutPublisher(name, settings)
        case "null":
            from outspark.publishers.null import NullPublisher

            return NullPublisher()
