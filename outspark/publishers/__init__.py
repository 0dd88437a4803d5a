"""Publishers bring batches of messages to a destination. A broker's client is imported when it is used."""

from __future__ import annotations

from outspark.errors import ExtraMissing
from outspark.publishers.publisher import Publisher
from outspark.settings import DestinationSettings

__all__ = ["Publisher", "open_publisher"]


def open_publisher(name: str, settings: DestinationSettings) -> Publisher:
    """The publisher of destination `name`. No I/O yet; SettingsError when its options make no sense."""
    match settings.type:
        case "nats":
            try:
                from outspark.publishers.nats import NatsPublisher
            except ModuleNotFoundError as error:
                raise ExtraMissing("the NATS publisher", "nats") from error
            return NatsPublisher(name, settings)
        case "stdout":
            from outspark.publishers.stdout import StdoutPublisher

            return StdoutPublisher(name, settings)
        case "null":
            from outspark.publishers.null import NullPublisher

            return NullPublisher()
