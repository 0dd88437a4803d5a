"""A message for a jEAP outbox: what it may be, and the row and the event that it becomes."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from outspark.contracts.jeap.enqueue import Row, events, insert_params
from outspark.contracts.jeap.trace import NO_TRACE, columns
from outspark.errors import EventInvalid, SettingsError
from outspark.outbox.jeap import JeapOutbox, NewMessage
from outspark.outbox.jeap.new_message import check

ID = UUID("0198c5e2-7a1b-7c3d-8e4f-5a6b7c8d9e0f")


def message(**fields: Any) -> NewMessage:
    return NewMessage(**{"topic": "orders", "payload": b"{}", "type": "OrderCreated", "id": ID, **fields})


def test_a_message_becomes_a_row() -> None:
    full = message(key=b"k", type_version="1.0", idempotence_id="order 7", cluster="second")
    assert check(full, "main") == Row(
        b"{}", b"k", "second", "orders", str(ID), "order 7", "OrderCreated", "1.0"
    )


def test_what_is_left_out() -> None:
    row = check(message(), "main")
    assert (row.key, row.cluster, row.version, row.idempotence_id) == (None, "main", None, str(ID))
    assert check(message(), None).cluster is None
    made = check(NewMessage("t", b"", "T"), None)
    assert UUID(made.message_id).version == 7


@pytest.mark.parametrize("raw", [bytearray(b"ab"), memoryview(b"ab")])
def test_bytes_of_any_kind(raw: Any) -> None:
    row = check(message(payload=raw, key=raw), None)
    assert (row.message, row.key) == (b"ab", b"ab")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"topic": ""}, "topic is empty"),
        ({"topic": None}, "topic is NoneType, allowed: str"),
        ({"topic": "a\0b"}, "topic has a NUL"),
        ({"topic": "a\ud800"}, "topic is not valid Unicode"),
        ({"type": " "}, "type is empty"),
        ({"type_version": 1}, "type_version is int, allowed: str"),
        ({"id": 7}, "id is int, allowed: str"),
        ({"id": ""}, "id is empty"),
        ({"idempotence_id": ""}, "idempotence_id is empty"),
        ({"cluster": ""}, "cluster is empty"),
        ({"payload": "text"}, "payload is str, allowed: bytes; encode it first"),
        ({"payload": None}, "payload is NoneType"),
        ({"key": "text"}, "key is str, allowed: bytes"),
    ],
)
def test_what_cannot_be_sent(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(EventInvalid) as refused:
        check(message(**fields), None)
    assert problem in str(refused.value)


def test_a_row_becomes_the_event_that_a_lane_would_read() -> None:
    trace = columns("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    rows = [check(message(key=b"\xff\x00", cluster="second"), None), check(message(), None)]
    at = datetime.now(UTC)
    first, second = events([(8, at), (7, at)], rows, trace, "w3c")

    assert (first.id, first.type, first.key, first.order_key) == ("7", "orders", "\udcff\0", "ff00")
    assert (first.payload, first.cluster, first.message_id, first.created_at) == (
        b"{}",
        "second",
        str(ID),
        at,
    )
    assert first.headers == {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    assert (second.id, second.key, second.order_key) == ("8", None, "/orders")


def test_a_scheduled_message_has_no_time() -> None:
    rows = [check(message(), None)]
    scheduled, immediate = insert_params(rows, NO_TRACE, None), insert_params(rows, NO_TRACE, 20.0)
    assert (scheduled["immediate"], scheduled["seconds"]) == (False, None)
    assert (immediate["immediate"], immediate["seconds"]) == (True, 20.0)
    assert scheduled["messages"] == [b"{}"]
    assert scheduled["trace_id"] is None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"destination": {"type": "kafak"}}, "destination default: type: "),
        ({"destination": {"type": "null", "uri": "x"}}, "destination default: uri: "),
        ({"clusters": {"second": {"type": "null"}}}, "clusters need a `destination` too"),
        (
            {"destination": {"type": "null"}, "clusters": {"default": {"type": "null"}}},
            "is the name of `destination`",
        ),
        ({"table": "no table;"}, "is not a table name"),
    ],
)
def test_settings_are_checked_when_the_outbox_is_made(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as refused:
        JeapOutbox(**options)
    assert problem in str(refused.value)


def test_a_service_imports_no_more_than_it_uses() -> None:
    code = (
        "import sys, outspark.outbox.jeap;"
        "heavy = {'pyspark', 'sqlalchemy', 'opentelemetry', 'confluent_kafka', 'fastavro'};"
        "print(*sorted(heavy & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip() == b""


def test_settings_show_no_secret() -> None:
    with pytest.raises(SettingsError) as refused:
        JeapOutbox(destination={"type": "kafka", "url": ["kafka://user:s3cret@host"]})
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None
