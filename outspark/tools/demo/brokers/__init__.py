"""The brokers that the demo can play on. A broker's client is imported when it is used."""

from __future__ import annotations

from typing import Literal, TypeAlias, assert_never, get_args

from outspark.errors import ExtraMissing
from outspark.tools.demo.brokers.broker import Broker

__all__ = ["NAMES", "Broker", "Name", "open_broker"]

Name: TypeAlias = Literal["nats", "kafka", "rabbitmq", "redis"]
NAMES: tuple[Name, ...] = get_args(Name)


def open_broker(name: Name) -> Broker:
    """Not started yet; ExtraMissing when its client is not installed."""
    try:
        return _open(name)
    except ModuleNotFoundError as error:
        raise ExtraMissing(f"the demo on {name}", "all") from error


def _open(name: Name) -> Broker:
    match name:
        case "nats":
            from outspark.tools.demo.brokers.nats import NatsBroker

            return NatsBroker()
        case "kafka":
            from outspark.tools.demo.brokers.kafka import KafkaBroker

            return KafkaBroker()
        case "rabbitmq":
            from outspark.tools.demo.brokers.rabbitmq import RabbitMQBroker

            return RabbitMQBroker()
        case "redis":
            from outspark.tools.demo.brokers.redis import RedisBroker

            return RedisBroker()
    assert_never(name)
