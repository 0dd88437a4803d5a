"""The configuration of a Kafka feed: brokers from its URL, librdkafka's properties from its options."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer

from outspark.brokers.kafka import properties as kafka_properties
from outspark.config.inbox import FeedSettings
from outspark.errors import SettingsError

_WHERE = "feed"
_STRATEGY = "partition.assignment.strategy"
_DEFAULTS = {
    "client.id": "outspark",
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    # Not cooperative: a cooperative rebalance takes two rounds. A static member that crashes between them and rejoins
    # under its name triggers no second round, and its partitions stay without an owner until the next rebalance.
    _STRATEGY: "roundrobin",
    # New topics and partitions are noticed within this time.
    "topic.metadata.refresh.interval.ms": "10000",
    # Some batches of each partition are prefetched, and the client fetches more as soon as they run low.
    "queued.min.messages": "10000",
    "queued.max.messages.kbytes": "32768",
    "fetch.queue.backoff.ms": "20",
    "reconnect.backoff.max.ms": "1000",
    "socket.keepalive.enable": "true",
}
_BY_URL = "the brokers are set in the feed's url"
_BY_OUTSPARK = "offsets are committed when the inbox has stored the messages"
_REFUSED = {
    "bootstrap.servers": _BY_URL,
    "metadata.broker.list": _BY_URL,
    "group.id": "the inbox's group is the consumer group",
    "group.instance.id": "it is the name of the lane, so that its next shift takes over without a rebalance",
    "enable.auto.commit": _BY_OUTSPARK,
    "auto.commit.enable": _BY_OUTSPARK,
    "auto.commit.interval.ms": _BY_OUTSPARK,
    "enable.auto.offset.store": _BY_OUTSPARK,
    "enable.partition.eof": "a feed has no use for the end of a partition",
}
_MEMBER = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True)
class KafkaFeedOptions:
    brokers: str
    client: Mapping[str, str] = field(repr=False)
    """The complete configuration of the client."""

    def hide_secrets(self, text: str) -> str:
        return kafka_properties.without_secrets(text, self.client)


def kafka_feed_options(settings: FeedSettings, group: str, member: str) -> KafkaFeedOptions:
    """Read the options; a SettingsError names the fault but never a secret value."""
    given = dict(kafka_properties.flat(_WHERE, settings.options))
    for option in given:
        if option in _REFUSED:
            raise SettingsError(f"{_WHERE}.options: {option} cannot be set: {_REFUSED[option]}")
    brokers = kafka_properties.brokers(_WHERE, settings.url.get_secret_value())
    client = {
        **_DEFAULTS,
        **given,
        "group.id": group,
        "group.instance.id": instance_id(member),
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
    }
    if given.get("group.protocol", "").lower() == "consumer" and _STRATEGY not in given:
        del client[_STRATEGY]  # with this protocol the brokers assign partitions
    kafka_properties.try_out(_WHERE, client, _make_and_close)
    return KafkaFeedOptions(brokers, {**client, "bootstrap.servers": brokers})


def instance_id(member: str) -> str:
    """The member's name. Characters that Kafka does not allow are replaced, and a hash keeps such names different."""
    if _MEMBER.fullmatch(member):
        return member
    digest = hashlib.sha256(member.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{re.sub('[^A-Za-z0-9._-]', '_', member)[:180]}-{digest}"


def _make_and_close(properties: dict[str, Any]) -> None:
    with closing(Consumer(properties)):
        pass
