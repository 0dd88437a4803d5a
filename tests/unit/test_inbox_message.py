"""From a broker's message to a row: its id, its time, and what is kept of what does not fit."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outspark.brokers.feed import Received
from outspark.config.inbox import AcceptSettings
from outspark.inbox.intake.encoding import unwrap, wrap
from outspark.inbox.intake.message import Incoming, Reader

AT = datetime(2026, 11, 16, 7, 0, tzinfo=UTC)
# 2022-02-22T19:22:22Z, the example of RFC 9562.
UUID7, UUID7_TIME = "017f22e2-79b0-7cc3-98c4-dc0c0c07398f", datetime(2022, 2, 22, 19, 22, 22, tzinfo=UTC)
UUID4 = "c2f1b3a0-0f7e-4c27-9d3c-0a4f6a0a2a11"


def received(body: bytes | None = b"{}", headers: Any = (), **more: Any) -> Received:
    usual = {"topic": "orders", "timestamp": AT, "partition": 3, "offset": 42}
    return Received(body=body, headers=headers, **{**usual, **more})


def incoming(message: Received, **settings: Any) -> Incoming:
    return Reader(AcceptSettings(**{"group": "billing", **settings})).read(message).checked()


@pytest.mark.parametrize(
    ("headers", "id"),
    [
        ([], "orders-3-42"),
        ([("X-Event-ID", b"a")], "a"),
        ([("x-event-id", b"a")], "a"),
        ([("ce_id", b"c"), ("Nats-Msg-Id", b"n")], "n"),
        ([("X-Event-ID", b""), ("ce_id", "c")], "c"),
        ([("event_id", b"e")], "e"),
        ([("event_id", b"e"), ("message_id", b"m")], "m"),
        ([("message_id", b"m"), ("event_id", b"e"), ("ce_id", b"c")], "c"),
        ([("X-Event-ID", None)], "orders-3-42"),
        ([("X-Event-ID", b"a"), ("X-Event-ID", b"b")], "b"),
    ],
)
def test_where_an_id_comes_from(headers: Any, id: str) -> None:
    assert incoming(received(headers=headers)).message_id == id


def test_id_headers_can_be_chosen() -> None:
    message = received(headers=[("X-Event-ID", b"a"), ("my-id", b"m")])

    assert incoming(message, id_headers=("My-Id",)).message_id == "m"


@pytest.mark.parametrize(
    ("headers", "id"),
    [
        ([("ce_id", b"7"), ("ce_source", b"/shop")], "/shop|7"),
        ([("ce_source", b"/till"), ("CE_ID", b"7")], "/till|7"),
        ([("ce_id", b"7"), ("ce_source", b"")], "7"),
        ([("ce_id", b"7"), ("ce-source", b"/shop")], "7"),
        ([("X-Event-ID", b"a"), ("ce_id", b"7"), ("ce_source", b"/shop")], "a"),
        ([("X-Event-ID", b""), ("ce_id", b"7"), ("ce_source", b"/shop")], "/shop|7"),
    ],
)
def test_a_cloud_event_is_named_by_its_source_and_its_id(headers: Any, id: str) -> None:
    """Whatever the row's source is said to be."""
    assert incoming(received(headers=headers)).message_id == id
    assert incoming(received(headers=headers), source="all", source_headers=()).message_id == id


@pytest.mark.parametrize("prefix", ["ce_", "ce-", "cloudEvents_", "cloudEvents:"])
def test_every_binding_of_cloud_events_is_known(prefix: str) -> None:
    headers = [(f"{prefix}source", b"/shop"), (f"{prefix}id", b"7")]

    assert incoming(received(headers=headers), id_headers=(f"{prefix}id",)).message_id == "/shop|7"


_part = st.text("a|", max_size=4).map(str.encode) | st.sampled_from(
    [b"a" * 254, b"\0", b"\0\0\0\1a", b"\xff"]
)


@given(st.lists(st.tuples(_part, _part.filter(bool)), unique=True, min_size=2))
def test_no_two_cloud_events_share_an_id(events: list[tuple[bytes, bytes]]) -> None:
    ids = {
        incoming(received(headers=[("ce_source", source), ("ce_id", id)])).message_id for source, id in events
    }

    assert len(ids) == len(events)
    assert all(len(id) <= 255 for id in ids)


def test_a_stream_has_its_own_places() -> None:
    assert (
        incoming(received(topic="orders.eu", log="ORDERS", partition=0, offset=9)).message_id == "ORDERS-0-9"
    )


@pytest.mark.parametrize("id", [b"x" * 256, b"\xff", b"a\0b"])
def test_an_id_that_no_column_holds_is_hashed(id: bytes) -> None:
    message_id = incoming(received(headers=[("X-Event-ID", id)])).message_id

    assert message_id.startswith("sha256:")
    assert len(message_id) == 71


@pytest.mark.parametrize(
    ("headers", "created_at", "own"),
    [
        ([("X-Event-ID", UUID7)], UUID7_TIME, True),
        ([("ce_id", UUID7), ("ce_source", "/shop")], UUID7_TIME, True),
        ([("ce_id", UUID4), ("ce_source", "/shop")], AT, False),
        ([("X-Event-ID", UUID4)], AT, False),
        (
            [("X-Event-ID", UUID4), ("ce_time", "2026-01-02T03:04:05Z")],
            datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            True,
        ),
        ([("X-Event-ID", UUID4), ("ce_time", "2026-01-02T03:04:05")], AT, False),
        ([("X-Event-ID", UUID4), ("ce_time", "yesterday")], AT, False),
        ([("X-Event-ID", "ffffffff-ffff-7fff-bfff-ffffffffffff")], AT, False),
        ([], AT, True),
    ],
)
def test_where_a_time_comes_from(headers: Any, created_at: datetime, own: bool) -> None:
    found = incoming(received(headers=headers))

    assert (found.created_at, found.own_time) == (created_at, own)


def test_a_message_without_any_time_gets_that_of_its_acceptance() -> None:
    found = incoming(received(timestamp=None))

    assert (found.created_at, found.own_time) == (None, False)


def test_an_idempotency_key_carries_its_group() -> None:
    headers = [("Idempotency-Key", b"order-7")]

    assert incoming(received(headers=headers)).idempotency_key == "billing:order-7"


def test_idempotency_keys_of_two_groups_never_meet() -> None:
    one = incoming(received(headers=[("Idempotency-Key", b"b:c")]), group="a").idempotency_key
    other = incoming(received(headers=[("Idempotency-Key", b"c")]), group="a:b").idempotency_key
    long = incoming(received(headers=[("Idempotency-Key", b"k" * 128)]), group="a").idempotency_key

    assert one == "a:b:c"
    assert other is not None
    assert long is not None
    assert len({one, other, long}) == 3
    assert len(other) == len(long) == 64


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b"", None),
        (None, None),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b'"\\\\u0000"', "\\u0000"),
    ],
)
def test_bodies_that_are_json(body: bytes | None, payload: Any) -> None:
    found = incoming(received(body))

    assert found.error is None
    assert json.loads(found.payload) == payload


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff", "it is not UTF-8"),
        (b"hello", "Expecting value"),
        (b"[NaN]", "NaN is not a number"),
        (b'"\\u0000"', "no NUL"),
        (b'"\\ud83d"', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_bodies_that_are_not_json_are_kept(body: bytes, reason: str) -> None:
    found = incoming(received(body, headers=[("Idempotency-Key", b"k")]))

    assert found.error is not None
    assert reason in found.error
    assert unwrap(json.loads(found.payload)) == body
    assert found.idempotency_key is None


@given(st.binary())
def test_wrapping_loses_nothing(body: bytes) -> None:
    assert unwrap(json.loads(wrap(body))) == body


@given(st.binary(), st.lists(st.tuples(st.text(), st.binary() | st.text())), st.binary())
def test_nothing_that_comes_in_is_too_strange(body: bytes, headers: Any, key: bytes) -> None:
    found = incoming(received(body, headers, key=key))

    json.loads(found.payload)
    for text in (found.message_id, found.event_type, found.source, found.headers):
        assert "\0" not in text
        text.encode()
    json.loads(found.headers)
    assert len(found.message_id) <= 255


def test_what_is_too_long_for_its_column_stays_in_the_headers() -> None:
    found = incoming(received(headers=[("correlation_id", "c" * 65), ("schema_version", "v" * 51)]))

    assert (found.correlation_id, found.schema_version) == (None, None)
    assert json.loads(found.headers)["correlation_id"] == "c" * 65


def test_type_and_source_from_settings_headers_or_topic() -> None:
    plain = incoming(received())
    rich = incoming(received(headers=[("ce_type", "order.paid"), ("ce_source", "/shop")]))
    service = incoming(received(headers=[("source_service", "till")]))
    both = incoming(received(headers=[("source_service", "till"), ("source", "shop")]))
    fixed = incoming(received(headers=[("ce_source", "/shop")]), source="users")

    assert (plain.event_type, plain.source) == ("orders", "orders")
    assert (rich.event_type, rich.source) == ("order.paid", "/shop")
    assert (service.source, both.source, fixed.source) == ("till", "shop", "users")


def test_headers_of_one_topic_need_not_be_the_same() -> None:
    reader = Reader(AcceptSettings(group="billing"))
    bare, rich = (
        received(),
        received(headers=[("ce_id", b"c"), ("Correlation_ID", b"x"), ("partition_key", b"k")]),
    )

    for _ in range(2):
        assert reader.read(bare).correlation_id is None
        assert (reader.read(rich).message_id, reader.read(rich).correlation_id) == ("c", "x")
    assert json.loads(reader.read(rich).headers) == {
        "ce_id": "c",
        "Correlation_ID": "x",
        "partition_key": "k",
    }


def test_the_key_of_a_message_goes_before_a_header_of_that_name() -> None:
    found = incoming(received(headers=[("partition_key", b"header")], key=b"key"))

    assert json.loads(found.headers) == {"partition_key": "key"}


def test_names_of_headers_without_end_do_no_harm() -> None:
    reader = Reader(AcceptSettings(group="billing"))

    for number in range(3000):
        found = reader.read(received(headers=[(f"x-{number}", b"1"), ("ce_id", str(number))]))
        assert found.message_id == str(number)
