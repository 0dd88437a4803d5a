"""What a webhook sends and what its answers mean, without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from outspark.brokers.http.endpoint import parse
from outspark.brokers.http.sender import Batch
from outspark.brokers.http.signature import Signer
from outspark.brokers.http.wire import Answer, Encoder, Post, outcome, retry_after
from outspark.event import Message
from outspark.outcome import DELIVERED, HELD, Dead, Retry, TopicFault

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
URL = "https://hooks.example.com/in"


def encode(message: Message, url: str = URL, fixed: dict[str, str] | None = None) -> Post:
    post = Encoder(parse(url), fixed or {}, None, None).encode(message, 0)
    assert isinstance(post, Post), post
    return post


def header(post: Post, name: str) -> list[bytes]:
    return [value for given, value in post.headers if given.lower() == name.encode().lower()]


def message(topic: str = "order.created", key: str | None = "42", **headers: str) -> Message:
    return Message("id-1", topic, key, b"{}", headers, key)


def test_the_published_example_of_standard_webhooks() -> None:
    signer = Signer("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = signer.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', 1614265330)
    assert signed == [
        (b"webhook-id", b"msg_p5jXN8AQM9LWM0D4loKWxJek"),
        (b"webhook-timestamp", b"1614265330"),
        (b"webhook-signature", b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
    ]


def test_each_header_goes_once_and_ours_win_whatever_the_case() -> None:
    own = {
        "x-event-id": "forged",
        "AUTHORIZATION": "event's",
        "Content-Length": "9",
        "host": "evil",
        "Te": "x",
    }
    sent = Message(
        "id-1", "order.created", "42", b"{}", {**own, "content-type": "application/json", "b": " c "}
    )
    post = encode(sent, fixed={"Authorization": "Bearer t"})
    assert header(post, "x-event-id") == [b"id-1"]
    assert header(post, "x-event-topic") == [b"order.created"]
    assert header(post, "x-partition-key") == [b"42"]
    assert header(post, "authorization") == [b"Bearer t"]
    assert header(post, "content-length") == [b"2"]
    assert header(post, "host") == [b"hooks.example.com"]
    assert header(post, "content-type") == [b"application/json"]
    assert header(post, "b") == [b"c"]
    assert header(post, "te") == []


def test_a_user_in_the_url_is_basic_authorization() -> None:
    post = encode(message(), "https://ada:p%40ss@hooks.example.com/")
    assert header(post, "authorization") == [b"Basic YWRhOnBAc3M="]


@pytest.mark.parametrize(
    ("url", "topic", "target"),
    [
        ("https://h.example", "t", b"/"),
        ("https://h.example/in?a=b c", "t", b"/in?a=b%20c"),
        ("https://h.example/in/{topic}", "order.created", b"/in/order.created"),
        ("https://h.example/in?t={topic}", "a/b&c=ä?", b"/in?t=a%2Fb%26c%3D%C3%A4%3F"),
    ],
)
def test_the_topic_in_the_url_is_percent_encoded(url: str, topic: str, target: bytes) -> None:
    assert encode(message(topic), url).target == target


@pytest.mark.parametrize("topic", [".", "..", ""])
def test_a_topic_does_not_climb_out_of_the_path(topic: str) -> None:
    encoder = Encoder(parse("https://h.example/in/{topic}/x"), {}, None, None)
    assert encoder.encode(message(topic), 0) == Dead(f"topic {topic!r} would lead to another path of the URL")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "must begin with https"),
        ("ftp://s3cr3t@h.example", "must begin with https"),
        ("https://", "must name a host"),
        ("https://{topic}.example/", "may stand only behind it"),
        ("https://h.example/#s3cr3t", "fragment"),
        ("https://h.example:s3cr3t/", "port"),
        ("https://h..example/s3cr3t", "not a valid name"),
    ],
)
def test_wrong_urls_are_refused_without_being_shown(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as refused:
        parse(url)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize("url", ["https://ada:s3cr3t-pw@h.example/", "https://h.example/s3cr3t-pw"])
def test_an_endpoint_hides_what_is_secret(url: str) -> None:
    endpoint = parse(url)
    assert "s3cr3t-pw" in endpoint.secrets
    assert "s3cr3t-pw" not in repr(endpoint) + endpoint.origin


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_delivered(status: int) -> None:
    assert outcome(Answer(status, {}, b"thanks")) == DELIVERED


@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 503, 599])
def test_what_may_pass_later(status: int) -> None:
    assert outcome(Answer(status, {}, b"")) == Retry(f"HTTP {status}")


@pytest.mark.parametrize("status", [400, 409, 413, 422, 431])
def test_what_can_never_pass(status: int) -> None:
    assert outcome(Answer(status, {}, b"")) == Dead(f"HTTP {status}")


@pytest.mark.parametrize(
    ("status", "fault"), [(401, "forbidden"), (403, "forbidden"), (404, "missing"), (410, "missing")]
)
def test_what_an_endpoint_answers_to_everything(status: int, fault: TopicFault) -> None:
    remedy = {"missing": "open the endpoint again", "forbidden": "give the destination the credentials"}[
        fault
    ]
    found = outcome(Answer(status, {}, b"gone"))
    assert isinstance(found, Retry)
    assert found == Retry.of_topic(fault, found.error)
    assert found.error.startswith(f"HTTP {status}: gone; {remedy}")


def test_an_answer_is_shown_in_one_line_of_200_characters() -> None:
    dead = outcome(Answer(400, {}, b"no\r\n\x00 such\xff" + b"x" * 500))
    assert isinstance(dead, Dead)
    assert dead.error.startswith("HTTP 400: no such�xxx")
    assert len(dead.error) == len("HTTP 400: ") + 200


def test_a_redirect_names_the_server_and_not_the_path() -> None:
    moved = outcome(Answer(302, {"location": "https://u:p@other.example/s3cr3t?a=b"}, b""))
    assert isinstance(moved, Retry)
    assert moved.fault == "missing"
    assert "HTTP 302 redirects to https://other.example, and redirects are not followed" in moved.error
    assert "another path" in str(outcome(Answer(301, {"location": "/s3cr3t"}, b"")))


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("120", timedelta(minutes=2)),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), timedelta(seconds=90)),
        (format_datetime(NOW - timedelta(seconds=90), usegmt=True), None),
        ("0", None),
        ("-5", None),
        ("soon", None),
        ("1.5", None),
        ("9" * 30, timedelta(days=1)),
        (None, None),
    ],
)
def test_retry_after_in_seconds_or_as_a_date(value: str | None, wait: timedelta | None) -> None:
    assert retry_after(value, NOW) == wait


def test_the_earliest_message_of_a_free_key_goes_next() -> None:
    batch = Batch([message(key=key) for key in ("a", "a", None, "b", "a", None)])
    assert [batch.take() for _ in range(5)] == [0, 2, 3, 5, None]
    batch.settle(0, DELIVERED)
    assert [batch.take(), batch.take()] == [1, None]
    batch.settle(1, Retry("no"))
    assert batch.take() is None
    for index in (2, 3, 5):
        batch.settle(index, DELIVERED)
    assert batch.outcomes() == [DELIVERED, Retry("no"), DELIVERED, DELIVERED, HELD, DELIVERED]
