"""The frames we pack by hand are those that the client's own library reads; the server's words are understood."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from outspark.brokers.rabbitmq.wire import Encoder, Wire, forbidden_topic, too_large_over
from outspark.event import Message
from outspark.outcome import Dead

FRAME_MAX = 4096


def frames_of(message: Message) -> list[Any]:
    wire = Encoder("shop", FRAME_MAX, None).encode(message)
    assert isinstance(wire, Wire)
    data, frames = wire.frames, []
    while data:
        size, channel, parsed = frame.unmarshal(data)
        assert channel == 1
        assert size <= FRAME_MAX
        frames.append(parsed)
        data = data[size:]
    return frames


def test_a_message_is_a_method_a_header_and_a_body() -> None:
    headers = {"note": "Grüße", "empty": "", "content-type": "text/plain"}
    publish, header, body = frames_of(Message("id-1", "order.created", "42", b"{}", headers))
    assert isinstance(publish, commands.Basic.Publish)
    assert (publish.exchange, publish.routing_key, publish.mandatory) == ("shop", "order.created", True)
    assert isinstance(header, ContentHeader)
    assert header.body_size == 2
    assert header.properties == commands.Basic.Properties(
        content_type="text/plain",
        headers={**headers, "X-Event-ID": "id-1", "X-Partition-Key": "42"},
        delivery_mode=2,
        message_id="id-1",
    )
    assert isinstance(body, ContentBody)
    assert body.value == b"{}"


@pytest.mark.parametrize("size", [0, 1, FRAME_MAX - 8, FRAME_MAX - 7, 3 * FRAME_MAX])
def test_a_body_is_split_where_a_frame_is_full(size: int) -> None:
    payload = bytes(number % 251 for number in range(size))
    _, header, *bodies = frames_of(Message("id", "t", None, payload, {}))
    assert header.body_size == size
    assert b"".join(body.value for body in bodies) == payload
    assert len(bodies) == -(-size // (FRAME_MAX - 8))


def test_headers_fill_one_frame_at_most() -> None:
    encoder = Encoder("", FRAME_MAX, None)
    for spare, kind in ((0, Wire), (1, Dead)):
        start = Encoder("", 0, None).encode(Message("id", "t", None, b"", {"a": ""}))
        assert isinstance(start, Wire)
        method = frame.unmarshal(start.frames)[0]
        room = FRAME_MAX - (len(start.frames) - method)
        assert isinstance(encoder.encode(Message("id", "t", None, b"", {"a": "x" * (room + spare)})), kind)


def test_names_and_topics_without_end_are_not_all_remembered() -> None:
    encoder = Encoder("", 0, None)
    for number in range(10_010):
        assert isinstance(encoder.encode(Message("id", f"t{number}", None, b"", {f"h{number}": ""})), Wire)
    assert len(encoder._methods) <= 10_000
    assert len(encoder._names) <= 10_000


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        ("PRECONDITION_FAILED - message size 2048 is larger than configured max size 1024", 1024),
        ("PRECONDITION_FAILED - message size 536870913 is larger than max size 536870912", 536870912),
        ("PRECONDITION_FAILED - invalid expiration", None),
    ],
)
def test_the_limit_in_the_servers_words(words: str, limit: int | None) -> None:
    assert too_large_over(words) == limit


@pytest.mark.parametrize(
    ("words", "topic"),
    [
        (
            "ACCESS_REFUSED - access to topic 'a.b' in exchange 'amq.topic' in vhost '/' refused for user 'u'",
            "a.b",
        ),
        ("ACCESS_REFUSED - access to exchange 'amq.topic' in vhost '/' refused for user 'u'", None),
    ],
)
def test_the_topic_in_the_servers_words(words: str, topic: str | None) -> None:
    assert forbidden_topic(words) == topic
