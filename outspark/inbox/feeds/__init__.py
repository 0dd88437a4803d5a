"""Feeds bring messages from a broker to an inbox. A broker's client is imported when it is used."""

from __future__ import annotations

from outspark.errors import ExtraMissing
from outspark.inbox.intake import Feed
from outspark.settings.inbox import FeedSettings

__all__ = ["Feed", "open_feed"]


def open_feed(settings: FeedSettings, group: str, member: str) -> Feed:
    """The feed of one member of a consumer group. No I/O yet; SettingsError when its options make no sense.

    A `member` is one at a time: the next one of that name takes over what the last one had.
    """
    try:
        return _open(settings, group, member)
    except ModuleNotFoundError as error:
        raise ExtraMissing(f"a feed of type {settings.type}", settings.type) from error


def _open(settings: FeedSettings, group: str, member: str) -> Feed:
    match settings.type:
        case "kafka":
            from outspark.inbox.feeds.kafka import KafkaFeed

            return KafkaFeed(settings, group, member)
        case "nats":
            from outspark.inbox.feeds.nats import NatsFeed

            return NatsFeed(settings, group)
