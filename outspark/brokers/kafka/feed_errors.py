"""Classifies Kafka's errors for a consumer: lost partitions, errors to retry, refusals, fatal errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError

from outspark.brokers.feed import Outage
from outspark.brokers.kafka.tls import is_client_certificate_refusal
from outspark.errors import FeedFailed

PARTITION_LOST: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._FENCED,
        KafkaError._FATAL,
        KafkaError._NO_OFFSET,
    }
)
"""Answers to a commit after this consumer lost the partition or its membership; the next owner commits instead."""

COMMIT_LATER: Final = frozenset({KafkaError.REBALANCE_IN_PROGRESS, KafkaError._IN_PROGRESS})
"""Answers to a valid commit that must be repeated a moment later; they are not reported."""

_MISSING = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)
_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError._INCONSISTENT,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.GROUP_MAX_SIZE_REACHED,
        KafkaError.UNSUPPORTED_ASSIGNOR,
    }
)

_FENCED = frozenset({KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED})
_FENCED_TEXT = KafkaError(KafkaError.FENCED_INSTANCE_ID).str()


def is_missing(error: KafkaError) -> bool:
    """The topic does not exist yet, but may be created."""
    return error.code() in _MISSING


def is_refusal(error: KafkaError) -> bool:
    """Waiting does not help: an operator must change permissions, credentials or settings."""
    return error.code() in _REFUSED or is_client_certificate_refusal(error.str())


def is_fatal(error: KafkaError) -> bool:
    """The consumer cannot be used any more. Some errors are fatal by their code only, without librdkafka's flag."""
    return error.fatal() or error.code() == KafkaError._FATAL or _is_fenced(error)


def _is_fenced(error: KafkaError) -> bool:
    """A polled error has the code _FATAL and the text of the original error."""
    return error.code() in _FENCED or (error.code() == KafkaError._FATAL and _FENCED_TEXT in error.str())


def text(error: KafkaError) -> str:
    return f"{error.str()} ({error.name()})"


class Faults:
    """Errors that the client reports besides messages. Apart from the feed: a cycle would keep the consumer alive."""

    def __init__(self, outage: Outage, describe: Callable[[str], str]) -> None:
        self._outage = outage
        self._describe = describe
        self._fatal = ""
        self._refused = ""

    def __call__(self, error: KafkaError) -> None:
        if _is_fenced(error):
            # It also happens without another consumer: a heartbeat after an outage longer than the session is fenced.
            self._fatal = (
                f"fenced: another consumer uses this member's name, or the session expired: {text(error)}"
            )
        elif is_fatal(error):
            self._fatal = self._fatal or f"the consumer failed: {text(error)}"
        elif is_refusal(error):
            self._refused = text(error)
        elif is_missing(error):
            self._outage.wait_for(self._describe(error.str()))
        elif error.code() != KafkaError._PARTITION_EOF:
            self._outage.begin(self._describe(text(error)))

    def check(self, *, got_messages: bool) -> None:
        """FeedFailed if waiting does not help. While messages arrive, a refusal by one broker is ignored."""
        if self._fatal or (self._refused and not got_messages):
            raise FeedFailed(self._describe(self._fatal or self._refused))
        self._refused = ""
