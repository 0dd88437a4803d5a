"""What Kafka's errors mean to a consumer: which of them pass, which are for people, which say that we are not asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError

from outspark.brokers.feed import Outage
from outspark.brokers.kafka.tls import is_about_our_certificate
from outspark.errors import FeedFailed

NOT_OURS: Final = frozenset(
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
"""Answers to a commit by which the partition, or we, are not what they were: the next owner sees to it."""

LATER: Final = frozenset({KafkaError.REBALANCE_IN_PROGRESS, KafkaError._IN_PROGRESS})
"""Answers to a commit that is in order, and that is to be made again in a moment: nobody need hear of these."""

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
_FENCED_SAYS = KafkaError(KafkaError.FENCED_INSTANCE_ID).str()


def is_missing(error: KafkaError) -> bool:
    """A topic that is not there, and may come."""
    return error.code() in _MISSING


def is_refusal(error: KafkaError) -> bool:
    """Waiting does not help: somebody has to change something."""
    return error.code() in _REFUSED or is_about_our_certificate(error.str())


def is_fatal(error: KafkaError) -> bool:
    """The consumer is of no use any more. Not all errors that say so by their code have the flag too."""
    return error.fatal() or error.code() == KafkaError._FATAL or _is_fenced(error)


def _is_fenced(error: KafkaError) -> bool:
    """What is polled has the code _FATAL, and the words of the error behind it."""
    return error.code() in _FENCED or (error.code() == KafkaError._FATAL and _FENCED_SAYS in error.str())


def text(error: KafkaError) -> str:
    return f"{error.str()} ({error.name()})"


class Faults:
    """What a client reports besides messages. Not part of the feed: a cycle would keep the consumer alive."""

    def __init__(self, outage: Outage, describe: Callable[[str], str]) -> None:
        self._outage = outage
        self._describe = describe
        self._fatal = ""
        self._refused = ""

    def __call__(self, error: KafkaError) -> None:
        if _is_fenced(error):
            # The client does it to itself too: by a heartbeat after an outage that was longer than its session.
            self._fatal = (
                f"this member's place is taken, by another consumer or since an outage: {text(error)}"
            )
        elif is_fatal(error):
            self._fatal = self._fatal or f"the consumer gave up: {text(error)}"
        elif is_refusal(error):
            self._refused = text(error)
        elif is_missing(error):
            self._outage.wait_for(self._describe(error.str()))
        elif error.code() != KafkaError._PARTITION_EOF:
            self._outage.begin(self._describe(text(error)))

    def check(self, *, got_messages: bool) -> None:
        """FeedFailed where waiting does not help. While messages come, one broker's refusal is not all brokers'."""
        if self._fatal or (self._refused and not got_messages):
            raise FeedFailed(self._describe(self._fatal or self._refused))
        self._refused = ""
