"""How messages are encoded for Kafka and what its answers mean, without I/O.

Topic = topic, key = key, headers carried over, `X-Event-ID` = event id. Stored headers come first, as they are.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from confluent_kafka import KafkaError

from outspark.event import Message
from outspark.headers import Stored
from outspark.outcome import HELD, Dead, DeadKind, Outcome, Retry

EVENT_ID: Final = "X-Event-ID"

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
# Upper bounds of the bytes that a record needs besides its contents, and a header besides name and value.
_RECORD_FRAME, _HEADER_FRAME = 64, 10

TOO_LARGE: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE}
)
ONE_OF_THEM: Final = TOO_LARGE | {
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
    KafkaError._INVALID_DIFFERENT_RECORD,
}
"""For a batch of several messages: one of them is at fault, or together they are too large."""

BEING_CREATED: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE})
"""Errors of the brokers for a topic that is being created."""

UNSENT: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""The publisher purged the message itself."""

NO_TOPIC: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
_EVENT_AT_FAULT = ONE_OF_THEM | {
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.POLICY_VIOLATION,
    KafkaError._INVALID_ARG,
}
_DESTINATION_AT_FAULT = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError._RESOLVE,
    KafkaError._FATAL,
    KafkaError._DESTROY,
    KafkaError._STATE,
    KafkaError._ISR_INSUFF,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    KafkaError.INVALID_TIMESTAMP,  # this machine's clock or the broker's is wrong, which affects every event
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
}


class Wire(NamedTuple):
    """`size` is an upper bound of the bytes that the message needs in a producer batch."""

    key: bytes | None
    headers: Stored
    size: int


class Encoder:
    def __init__(self, max_payload: int | None) -> None:
        self._max_payload = max_payload
        self._name_sizes = {EVENT_ID: len(EVENT_ID) + _HEADER_FRAME}

    def encode(self, message: Message) -> Wire | Dead:
        payload, key = message.payload, message.key
        size = _RECORD_FRAME + len(payload)
        if self._max_payload is not None and len(payload) > self._max_payload:
            return Dead(f"payload of {len(payload)} bytes is over the limit of {self._max_payload}", "size")
        try:
            key_bytes = None if key is None else key.encode(errors="surrogateescape")
            plain = not message.headers and not message.stored
            headers = [(EVENT_ID, message.id.encode())] if plain else self._headers(message)
            for name, value in headers:
                size += len(value or b"") + (self._name_sizes.get(name) or self._add_name(name))
        except UnicodeEncodeError:
            return Dead("the key or a header is not valid Unicode")
        except ValueError as error:
            return Dead(str(error))
        return Wire(key_bytes, headers, size + len(key_bytes) if key_bytes else size)

    def _headers(self, message: Message) -> Stored:
        # The client cuts text at its first NUL, so values are passed as bytes.
        own = {name: value.encode() for name, value in message.headers.items()}
        own[EVENT_ID] = message.id.encode()
        return [*message.stored, *own.items()]

    def _add_name(self, name: str) -> int:
        if "\0" in name:
            raise ValueError(f"header name {name!r} contains a NUL, which the client cannot send")
        if len(self._name_sizes) >= 10_000:
            self._name_sizes.clear()
        size = self._name_sizes[name] = len(name.encode()) + _HEADER_FRAME
        return size


def topic_fault(topic: str) -> Dead | None:
    if _TOPIC.fullmatch(topic) and topic not in (".", ".."):
        return None
    return Dead(
        f"{topic!r} is not a Kafka topic: 1 to 249 letters, digits, dots, underscores and hyphens, not . or ..",
        "topic",
    )


def topic_refusal(topic: str, error: KafkaError) -> Outcome:
    """The outcome of every message for this topic, given the brokers' error about it."""
    if error.code() in NO_TOPIC:
        return Retry.of_topic("missing", f"topic {topic!r} does not exist; create it")
    return outcome(error, topic)


def outcome(error: KafkaError, topic: str) -> Outcome:
    """The outcome of one message that was refused with this error."""
    code = error.code()
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return Retry.of_topic("forbidden", f"not authorised to use topic {topic!r}; grant WRITE on it")
    if code in NO_TOPIC:
        # The topic existed a moment ago. The message is Held, and the next batch asks for the topic's metadata again.
        return HELD
    text = f"Kafka: {error.str()} ({error.name()})"
    if code in _EVENT_AT_FAULT:
        return Dead(text, _kind(code))
    return Retry(text, counted=code not in _DESTINATION_AT_FAULT and not error.fatal())


def _kind(code: int) -> DeadKind:
    if code in TOO_LARGE:
        return "size"
    return "topic" if code == KafkaError.TOPIC_EXCEPTION else "other"
