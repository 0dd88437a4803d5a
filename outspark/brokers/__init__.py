"""Brokers: a publisher sends batches of messages to a broker, a feed consumes messages from a broker for an inbox.

A broker's client library is imported when it is first used.
"""

from __future__ import annotations

from outspark.brokers.feed import Feed
from outspark.brokers.publisher import Publisher
from outspark.config.inbox import FeedSettings
from outspark.config.settings import ClaimCheckSettings, DestinationSettings
from outspark.errors import ExtraMissing

__all__ = ["Feed", "Publisher", "open_feed", "open_publisher"]


def open_feed(settings: FeedSettings, group: str, member: str) -> Feed:
    """Make the feed of one member of a consumer group, without I/O; SettingsError if its options are invalid.

    Only one feed at a time may use the name `member`: a second one takes the partitions of the first.
    """
    try:
        return _open_feed(settings, group, member)
    except ModuleNotFoundError as error:
        raise ExtraMissing(f"a feed of type {settings.type}", settings.type) from error


def _open_feed(settings: FeedSettings, group: str, member: str) -> Feed:
    match settings.type:
        case "kafka":
            from outspark.brokers.kafka.feed import KafkaFeed

            return KafkaFeed(settings, group, member)
        case "nats":
            from outspark.brokers.nats.feed import NatsFeed

            return NatsFeed(settings, group)


def open_publisher(name: str, settings: DestinationSettings) -> Publisher:
    """Make the publisher of destination `name`, without I/O; SettingsError if its options are invalid."""
    try:
        publisher = _open_publisher(name, settings)
    except ModuleNotFoundError as error:
        raise ExtraMissing(f"a destination of type {settings.type}", settings.type) from error
    return (
        publisher
        if settings.claim_check is None
        else _with_claim_check(name, publisher, settings.claim_check)
    )


def _with_claim_check(name: str, publisher: Publisher, settings: ClaimCheckSettings) -> Publisher:
    try:
        from outspark.brokers.claim_check import ClaimCheckPublisher
    except ModuleNotFoundError as error:
        raise ExtraMissing("a claim check", "claimcheck") from error
    return ClaimCheckPublisher(name, publisher, settings)


def _open_publisher(name: str, settings: DestinationSettings) -> Publisher:
    match settings.type:
        case "kafka":
            from outspark.brokers.kafka.publisher import KafkaPublisher

            return KafkaPublisher(name, settings)
        case "nats":
            from outspark.brokers.nats.publisher import NatsPublisher

            return NatsPublisher(name, settings)
        case "rabbitmq":
            from outspark.brokers.rabbitmq.publisher import RabbitMQPublisher

            return RabbitMQPublisher(name, settings)
        case "redis":
            from outspark.brokers.redis.publisher import RedisPublisher

            return RedisPublisher(name, settings)
        case "http":
            from outspark.brokers.http.publisher import HttpPublisher

            return HttpPublisher(name, settings)
        case "stdout":
            from outspark.brokers.stdout import StdoutPublisher

            return StdoutPublisher(name, settings)
        case "null":
            from outspark.brokers.null import NullPublisher

            return NullPublisher()
