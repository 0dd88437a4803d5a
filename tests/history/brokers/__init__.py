"""The real brokers that histories are played on. A broker's client is imported when it is used."""

from __future__ import annotations

from tests.history.brokers.broker import Broker

__all__ = ["NAMES", "Broker", "make_broker"]

NAMES = ("kafka", "rabbitmq", "redis", "http", "nats")


def make_broker(name: str) -> Broker:
    """Not started yet."""
    match name:
        case "kafka":
            from tests.history.brokers.kafka import KafkaBroker

            return KafkaBroker()
        case "rabbitmq":
            from tests.history.brokers.rabbitmq import RabbitMQBroker

            return RabbitMQBroker()
        case "redis":
            from tests.history.brokers.redis import RedisBroker

            return RedisBroker()
        case "http":
            from tests.history.brokers.http import HttpBroker

            return HttpBroker()
        case "nats":
            from tests.history.brokers.nats import NatsBroker

            return NatsBroker()
    raise ValueError(f"{name!r} is not one of: {', '.join(NAMES)}")
