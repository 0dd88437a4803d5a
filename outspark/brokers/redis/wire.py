"""What goes over the wire to Redis and what the answers mean: no I/O here.

Stream = topic. The fields of an entry: `id`, `payload`, `partition_key` when there is a key, `h:<name>` per header.
"""

from __future__ import annotations

from typing import Final

from redis.exceptions import ResponseError

from outspark.event import Message
from outspark.outcome import Dead, Outcome, Retry, TopicFault

ASKING: Final = b"*1\r\n$6\r\nASKING\r\n"

MAX_VALUE: Final = 512 * 1024 * 1024
"""Redis hangs up on a value over its proto-max-bulk-len. This is the default of that setting."""

_REMEMBERED_STREAMS = 10_000

# The event's own stream is at fault: other streams go on.
_STREAM_AT_FAULT: dict[str, tuple[TopicFault, str]] = {
    "WRONGTYPE": ("missing", "the key holds something else than a stream; rename or delete it"),
    "NOPERM": ("forbidden", "the user may not write to it; grant it XADD on this key"),
}
_REMEDIES = {"OOM": "free memory or raise maxmemory"}
_DESTINATION_AT_FAULT = {
    "OOM",  # maxmemory is reached and nothing may be evicted
    "READONLY",  # a replica
    "LOADING",  # just started
    "MASTERDOWN",  # a replica that lost its master
    "CLUSTERDOWN",  # no majority, or a slot that nobody serves
    "MISCONF",  # the disk refuses to persist
    "NOREPLICAS",  # fewer replicas than min-replicas-to-write
    "BUSY",  # a script blocks the server
    "TRYAGAIN",  # a slot is on the move
    "MOVED",
    "ASK",
}
# Neither the stream nor the moment: this server or this user knows no XADD at all.
_NO_XADD = ("unknown command", "no permissions to run")


class Encoder:
    """Turns messages into XADD commands as Redis reads them.

    Packed by hand: with the client's own packing it was the most expensive step of a batch.
    """

    def __init__(self, maxlen: int | None, exact: bool, max_payload: int | None) -> None:
        self._max_payload = MAX_VALUE if max_payload is None else max_payload
        trim = [] if maxlen is None else [b"MAXLEN", b"=" if exact else b"~", b"%d" % maxlen]
        self._after_stream = b"".join(map(_value, [*trim, b"*", b"id"]))
        self._words = 2 + len(trim) + 1
        self._heads: dict[str, bytes] = {}

    def encode(self, message: Message) -> bytes | Dead:
        """Dead when Redis could never take it: sending it would break the connection for the others."""
        payload = message.payload
        if len(payload) > self._max_payload:
            return Dead(f"payload of {len(payload)} bytes is over the limit of {self._max_payload}")
        try:
            return self._xadd(message, payload)
        except UnicodeEncodeError as error:
            return Dead(f"{error.object!r} in topic, key or headers is not valid Unicode")

    def _xadd(self, message: Message, payload: bytes) -> bytes:
        topic, event_id = message.topic, message.id.encode()
        head = self._heads.get(topic) or self._learn(topic)
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

    def _learn(self, topic: str) -> bytes:
        head = _value(topic.encode()) + self._after_stream
        if len(self._heads) >= _REMEMBERED_STREAMS:
            self._heads.clear()
        self._heads[topic] = head
        return head


def outcome(error: ResponseError, stream: str) -> Outcome:
    """What a refusal of one XADD means for its message."""
    code = code_of(error)
    if refuses_xadd(error):
        return Retry(f"Redis takes no XADD from us: {error}", counted=False)
    if found := _STREAM_AT_FAULT.get(code):
        fault, remedy = found
        return Retry.of_topic(fault, f"stream {stream!r}: {remedy} ({code})")
    return Retry(f"Redis: {said(error)}", counted=code not in _DESTINATION_AT_FAULT)


def said(error: ResponseError) -> str:
    """What Redis said, with its code, and what to do where that helps."""
    code, text = code_of(error), str(error)
    told = text if text.startswith(code) or code == "ERR" else f"{code} {text}"
    remedy = _REMEDIES.get(code)
    return f"{told.rstrip('.')}; {remedy}" if remedy else told


def refuses_xadd(error: ResponseError) -> bool:
    text = str(error).lower()
    return any(refusal in text for refusal in _NO_XADD)


def code_of(error: ResponseError) -> str:
    """The client cuts off the codes that it knows and keeps them apart."""
    return error.status_code or str(error).partition(" ")[0]


def _value(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)
