"""A broker for demo and bench. The client of a broker is imported when that broker is opened."""

from __future__ import annotations

from typing import assert_never, get_args

from outspark.errors import ExtraMissing
from outspark.tools.brokers.broker import Broker, BrokerName

__all__ = ["NAMES", "Broker", "BrokerName", "open_broker"]

NAMES: tuple[BrokerName, ...] = get_args(BrokerName)


def open_broker(name: BrokerName, *, tool: str, extra: str) -> Broker:
    """The broker, not started yet; ExtraMissing with `extra` when its client is not installed."""
    try:
        return _open(name)
    except ModuleNotFoundError as error:
        raise ExtraMissing(f"{tool} on {name}", extra) from error


def _open(name: BrokerName) -> Broker:
    match name:
        case "nats":
            from outspark.tools.brokers.nats import NatsBroker

            return NatsBroker()
        case "kafka":
            from outspark.tools.brokers.kafka import KafkaBroker

            return KafkaBroker()
        case "rabbitmq":
            from outspark.tools.brokers.rabbitmq import RabbitMQBroker

            return RabbitMQBroker()
        case "redis":
            from outspark.tools.brokers.redis import RedisBroker

            return RedisBroker()
    assert_never(name)
