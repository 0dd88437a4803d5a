"""The brokers that the bench publishes to, each on a server of its own. A client is imported when it is used."""

from __future__ import annotations

from outspark.errors import ExtraMissing
from outspark.tools.bench.brokers.broker import Broker, BrokerName

__all__ = ["Broker", "BrokerName", "open_broker"]


def open_broker(name: BrokerName) -> Broker:
    """Not started yet; ExtraMissing when its client is not installed."""
    try:
        return _open(name)
    except ModuleNotFoundError as error:
        raise ExtraMissing(f"the bench of {name}", name) from error


def _open(name: BrokerName) -> Broker:
    match name:
        case "kafka":
            from outspark.tools.bench.brokers.kafka import KafkaBroker

            return KafkaBroker()
        case "nats":
            from outspark.tools.bench.brokers.jetstream import JetStream

            return JetStream()
        case "rabbitmq":
            from outspark.tools.bench.brokers.rabbitmq import RabbitMQBroker

            return RabbitMQBroker()
        case "redis":
            from outspark.tools.bench.brokers.redis import RedisBroker

            return RedisBroker()
