"""How messages are encoded for Redis and what the answers mean, without I/O.

Stream = topic. The fields of an entry: `id`, `payload`, `partition_key` when there is a key, `h:<name>` per header.
"""

from __future__ import annotations

from typing import Final

from redis.exceptions import ResponseError

from outspark.event import Message
from outspark.outcome import Dead, Outcome, Retry, TopicFault

ASKING: Final = b"*1\r\n$6\r\nASKING\r\n"

MAX_VALUE: Final = 512 * 1024 * 1024
"""Redis closes the connection on a value over its proto-max-bulk-len. This is the default of that setting."""

_REMEMBERED_STREAMS = 10_000

# Faults of the event's own stream: other streams still accept messages.
_STREAM_AT_FAULT: dict[str, tuple[TopicFault, str]] = {
    "WRONGTYPE": ("missing", "the key holds another type than a stream; rename or delete it"),
    "NOPERM": ("forbidden", "the user may not write to it; grant it XADD on this key"),
}
_REMEDIES = {"OOM": "free memory or raise maxmemory"}
_DESTINATION_AT_FAULT = {
    "OOM",  # maxmemory is reached and nothing may be evicted
    "READONLY",  # a replica
    "LOADING",  # just started
    "MASTERDOWN",  # a replica that lost its master
    "CLUSTERDOWN",  # no majority, or a slot without a server
    "MISCONF",  # the disk refuses to persist
    "NOREPLICAS",  # fewer replicas than min-replicas-to-write
    "BUSY",  # a script blocks the server
    "TRYAGAIN",  # a slot is being moved
    "MOVED",
    "ASK",
}
# Permanent and for all streams: the server does not know XADD, or the user may not call it.
_NO_XADD = ("unknown command", "no permissions to run")


class Encoder:
    """Encodes messages as XADD commands in the Redis protocol.

    The client's own encoder was the most expensive step of a batch, so this one replaces it.
    """

    def __init__(self, maxlen: int | None, exact: bool, max_payload: int | None) -> None:
        self._max_payload = MAX_VALUE if max_payload is None else max_payload
        trim = [] if maxlen is None else [b"MAXLEN", b"=" if exact else b"~", b"%d" % maxlen]
        self._after_stream = b"".join(map(_value, [*trim, b"*", b"id"]))
        self._words = 2 + len(trim) + 1
        self._heads: dict[str, bytes] = {}

    def encode(self, message: Message) -> bytes | Dead:
        """Dead if Redis could never accept the message: sending it would break the connection for the others."""
        payload = message.payload
        if len(payload) > self._max_payload:
            return Dead(f"payload of {len(payload)} bytes is over the limit of {self._max_payload}")
        try:
            return self._xadd(message, payload)
        except UnicodeEncodeError as error:
            return Dead(f"{error.object!r} in topic, key or headers is not valid Unicode")

    def _xadd(self, message: Message, payload: bytes) -> bytes:
        topic, event_id = message.topic, message.id.encode()
        head = self._heads.get(topic) or self._add_head(topic)
        words = self._words + 4
        tail = b""
        if message.key is not None:
            key = message.key.encode()
            tail = b"$13\r\npartition_key\r\n$%d\r\n%b\r\n" % (len(key), key)
            words += 2
        if message.headers:
            words += 2 * len(message.headers)
            for name, text in message.headers.items():
                field, value = name.encode(), text.encode()
                tail += b"$%d\r\nh:%b\r\n$%d\r\n%b\r\n" % (len(field) + 2, field, len(value), value)
        return b"*%d\r\n$4\r\nXADD\r\n%b$%d\r\n%b\r\n$7\r\npayload\r\n$%d\r\n%b\r\n%b" % (
            words,
            head,
            len(event_id),
            event_id,
            len(payload),
            payload,
            tail,
        )

    def _add_head(self, topic: str) -> bytes:
        head = _value(topic.encode()) + self._after_stream
        if len(self._heads) >= _REMEMBERED_STREAMS:
            self._heads.clear()
        self._heads[topic] = head
        return head


def outcome(error: ResponseError, stream: str) -> Outcome:
    """The outcome of the message whose XADD was refused."""
    code = code_of(error)
    if refuses_xadd(error):
        return Retry(f"Redis refuses XADD: {error}", counted=False)
    if found := _STREAM_AT_FAULT.get(code):
        fault, remedy = found
        return Retry.of_topic(fault, f"stream {stream!r}: {remedy} ({code})")
    return Retry(f"Redis: {said(error)}", counted=code not in _DESTINATION_AT_FAULT)


def said(error: ResponseError) -> str:
    """The error's text with its code, and a remedy if there is one."""
    code, text = code_of(error), str(error)
    message = text if text.startswith(code) or code == "ERR" else f"{code} {text}"
    remedy = _REMEDIES.get(code)
    return f"{message.rstrip('.')}; {remedy}" if remedy else message


def refuses_xadd(error: ResponseError) -> bool:
    text = str(error).lower()
    return any(refusal in text for refusal in _NO_XADD)


def code_of(error: ResponseError) -> str:
    """The error code. The client removes codes that it knows from the text and keeps them in `status_code`."""
    return error.status_code or str(error).partition(" ")[0]


def _value(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)
