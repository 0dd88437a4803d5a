"""Envelopes, byte by byte. Where the CloudEvents bindings print an example, it is the expectation."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from outspark.config.settings import DestinationSettings
from outspark.delivery.envelopes import make_envelope
from outspark.errors import EventInvalid
from outspark.event import Event, Message
from outspark.headers import wire_headers

TIME = datetime(2018, 4, 5, 3, 56, 24, tzinfo=UTC)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b9c7c989f97918e1-01"


def wrap(
    envelope: str,
    *,
    type: str = "http",
    payload: bytes = b"{}",
    key: str | None = None,
    headers: dict[str, Any] | None = None,
    event_type: str = "com.example.someevent",
    created_at: datetime = TIME,
    **settings: Any,
) -> Message:
    event = Event("1234-1234-1234", event_type, key, payload, headers, 0, created_at)
    message = Message(event.id, "mytopic", event.key, event.payload, wire_headers(headers))
    before = dict(message.headers)
    destination = DestinationSettings.model_validate({"type": type, "envelope": envelope, **settings})
    wrapping = make_envelope(destination, "orders")
    assert wrapping is not None
    wrapped = wrapping(event, message)
    # The same message may go to other destinations too.
    assert (message.payload, message.headers) == (payload, before)
    assert (wrapped.id, wrapped.topic, wrapped.key) == (event.id, "mytopic", key)
    return wrapped


def test_raw_costs_nothing() -> None:
    assert make_envelope(DestinationSettings(type="null"), "orders") is None


class TestCloudEventsBinary:
    def test_kafka_is_the_example_of_its_binding(self) -> None:
        wrapped = wrap(
            "cloudevents-binary",
            type="kafka",
            payload=b"\x00avro",
            headers={"Content-Type": "application/avro"},
            envelope_source="/mycontext/subcontext",
        )
        assert wrapped.payload == b"\x00avro"
        assert wrapped.headers == {
            "ce_specversion": "1.0",
            "ce_type": "com.example.someevent",
            "ce_source": "/mycontext/subcontext",
            "ce_id": "1234-1234-1234",
            "ce_time": "2018-04-05T03:56:24Z",
            "content-type": "application/avro",
        }

    def test_http_is_the_example_of_its_binding(self) -> None:
        wrapped = wrap(
            "cloudevents-binary",
            headers={"content-type": "application/json; charset=utf-8"},
            envelope_source="/mycontext/subcontext",
        )
        assert wrapped.headers == {
            "ce-specversion": "1.0",
            "ce-type": "com.example.someevent",
            "ce-time": "2018-04-05T03:56:24Z",
            "ce-id": "1234-1234-1234",
            "ce-source": "/mycontext/subcontext",
            "content-type": "application/json; charset=utf-8",
        }

    def test_nats_is_the_example_of_its_binding_and_keeps_the_content_type(self) -> None:
        wrapped = wrap(
            "cloudevents-binary",
            type="nats",
            headers={"content-type": "application/json"},
            envelope_source="/mycontext/subcontext",
        )
        assert wrapped.headers == {
            "ce-specversion": "1.0",
            "ce-type": "com.example.someevent",
            "ce-time": "2018-04-05T03:56:24Z",
            "ce-id": "1234-1234-1234",
            "ce-source": "/mycontext/subcontext",
            "ce-datacontenttype": "application/json",
            "content-type": "application/json",
        }

    def test_rabbitmq_uses_the_prefix_that_jms_can_read(self) -> None:
        headers = wrap("cloudevents-binary", type="rabbitmq", key="k").headers
        assert headers["cloudEvents_id"] == "1234-1234-1234"
        assert headers["cloudEvents_partitionkey"] == "k"

    @pytest.mark.parametrize("type", ["redis", "stdout", "null"])
    def test_a_destination_without_a_binding_writes_plain_text(self, type: str) -> None:
        assert wrap("cloudevents-binary", type=type, key="Grüße").headers["ce-partitionkey"] == "Grüße"

    @pytest.mark.parametrize("type", ["http", "nats"])
    def test_values_are_escaped_as_in_the_example_of_the_binding(self, type: str) -> None:
        headers = wrap("cloudevents-binary", type=type, key="Euro € 😀").headers
        assert headers["ce-partitionkey"] == "Euro%20%E2%82%AC%20%F0%9F%98%80"

    def test_quotes_and_percent_signs_are_escaped_and_other_printable_characters_are_not(self) -> None:
        printable = "".join(map(chr, range(0x21, 0x7F)))
        expected = printable.replace("%", "%25").replace('"', "%22")
        assert wrap("cloudevents-binary", key=printable).headers["ce-partitionkey"] == expected

    def test_kafka_escapes_nothing(self) -> None:
        assert wrap("cloudevents-binary", type="kafka", key="50 % €").headers["ce_partitionkey"] == "50 % €"

    def test_other_headers_and_the_trace_stay_as_they_were(self) -> None:
        headers = {"tenant": "a", "traceparent": TRACE, "tracestate": "rojo=1"}
        wrapped = wrap("cloudevents-binary", type="kafka", headers=headers).headers
        assert wrapped.items() >= headers.items()
        assert (wrapped["ce_traceparent"], wrapped["ce_tracestate"]) == (TRACE, "rojo=1")

    def test_the_event_may_bring_attributes_but_not_rename_itself(self) -> None:
        headers = {"ce_subject": "order/17", "CE-Tenant": "a", "ce_id": "other", "ce_source": "/x"}
        wrapped = wrap("cloudevents-binary", type="kafka", headers=headers).headers
        assert wrapped == {
            "ce_specversion": "1.0",
            "ce_id": "1234-1234-1234",
            "ce_source": "/outspark/orders",
            "ce_type": "com.example.someevent",
            "ce_time": "2018-04-05T03:56:24Z",
            "ce_subject": "order/17",
            "ce_tenant": "a",
        }

    @pytest.mark.parametrize("type", ["kafka", "http"])
    def test_the_content_type_of_all_is_for_events_without_one(self, type: str) -> None:
        settings: dict[str, Any] = {"type": type, "envelope_content_type": "application/x-protobuf"}
        assert wrap("cloudevents-binary", **settings).headers["content-type"] == "application/x-protobuf"
        own = wrap("cloudevents-binary", headers={"content-type": "text/plain"}, **settings)
        assert own.headers["content-type"] == "text/plain"

    @pytest.mark.parametrize("key", [None, ""])
    def test_no_key_is_no_partition_key(self, key: str | None) -> None:
        assert "ce-partitionkey" not in wrap("cloudevents-binary", key=key).headers

    def test_time_is_in_utc_with_its_fraction(self) -> None:
        at = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=timezone(timedelta(hours=2)))
        assert wrap("cloudevents-binary", created_at=at).headers["ce-time"] == "2026-01-02T01:04:05.678000Z"

    @pytest.mark.parametrize(
        ("event", "reason"),
        [
            ({"key": "a\tb"}, "'partitionkey' contains a character"),
            ({"key": "\ud800"}, "'partitionkey' contains a character"),
            ({"key": "\ufffe"}, "'partitionkey' contains a character"),
            ({"event_type": ""}, "'type' is empty"),
            ({"headers": {"ce_subject": ""}}, "'subject' is empty"),
            ({"headers": {"ce_my-name": "x"}}, "'ce_my-name' is not a CloudEvents attribute"),
            ({"headers": {"ce_data": "x"}}, "'ce_data' is not a CloudEvents attribute"),
        ],
    )
    def test_what_the_standard_forbids_is_named(self, event: dict[str, Any], reason: str) -> None:
        for envelope in ("cloudevents-binary", "cloudevents-structured"):
            with pytest.raises(EventInvalid, match=reason):
                wrap(envelope, **event)


class TestCloudEventsStructured:
    def test_json_goes_in_byte_by_byte(self) -> None:
        payload = b'{ "b": 1.10, "a": 12345678901234567890123, "n": null }'
        wrapped = wrap("cloudevents-structured", payload=payload, key="k", headers={"tenant": "a"})
        assert wrapped.payload == (
            b'{"specversion":"1.0","id":"1234-1234-1234","source":"/outspark/orders",'
            b'"type":"com.example.someevent","time":"2018-04-05T03:56:24Z","partitionkey":"k",'
            b'"datacontenttype":"application/json",'
            b'"data":{ "b": 1.10, "a": 12345678901234567890123, "n": null }}'
        )
        assert wrapped.headers == {
            "tenant": "a",
            "content-type": "application/cloudevents+json; charset=UTF-8",
        }

    def test_json_data_of_the_format_s_own_example(self) -> None:
        data = {"appinfoA": "abc", "appinfoB": 123, "appinfoC": True}
        wrapped = wrap(
            "cloudevents-structured",
            payload=json.dumps(data).encode(),
            headers={"content-type": "application/json", "ce_comexampleextension1": "value"},
            envelope_source="/mycontext",
        )
        assert json.loads(wrapped.payload) == {
            "specversion": "1.0",
            "type": "com.example.someevent",
            "source": "/mycontext",
            "id": "1234-1234-1234",
            "time": "2018-04-05T03:56:24Z",
            "comexampleextension1": "value",
            "datacontenttype": "application/json",
            "data": data,
        }

    def test_the_attributes_are_not_headers_as_well(self) -> None:
        headers = {"traceparent": TRACE, "ce_subject": "order/17"}
        wrapped = wrap("cloudevents-structured", headers=headers)
        document = json.loads(wrapped.payload)
        assert (document["traceparent"], document["subject"]) == (TRACE, "order/17")
        assert set(wrapped.headers) == {"traceparent", "content-type"}

    @pytest.mark.parametrize("payload", [b'"text"', b"null", b" 1 ", b"1" * 5000, b'"\\ud800"', b"[]"])
    def test_any_json_value_is_data(self, payload: bytes) -> None:
        assert wrap("cloudevents-structured", payload=payload).payload.endswith(b'"data":' + payload + b"}")

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            b"\xff\x00",
            b"{",
            b"NaN",
            b"{} {}",
            b"\xef\xbb\xbf{}",
            '{"a":1}'.encode("utf-16"),
            b"[" * 100_000 + b"]" * 100_000,
        ],
        ids=["empty", "binary", "cut off", "NaN", "two", "BOM", "UTF-16", "too deep"],
    )
    def test_what_is_not_json_goes_as_base64(self, payload: bytes) -> None:
        document = json.loads(wrap("cloudevents-structured", payload=payload).payload)
        assert base64.b64decode(document["data_base64"]) == payload
        assert document.keys().isdisjoint({"data", "datacontenttype"})

    @pytest.mark.parametrize(
        ("declared", "payload", "member"),
        [
            ("application/vnd.shop.order+json; charset=utf-8", b"{}", "data"),
            ("Application/JSON", b"{}", "data"),
            ("application/json", b"not json", "data_base64"),
            ("application/vnd.apache.thrift.binary", b"123", "data_base64"),
            ("application/xml", b'<much wow="xml"/>', "data_base64"),
        ],
    )
    def test_the_declared_type_decides(self, declared: str, payload: bytes, member: str) -> None:
        document = json.loads(
            wrap("cloudevents-structured", payload=payload, headers={"Content-Type": declared}).payload
        )
        assert member in document
        assert document["datacontenttype"] == declared

    def test_the_source_s_name_is_made_a_uri(self) -> None:
        destination = DestinationSettings(type="null", envelope="cloudevents-structured")
        envelope = make_envelope(destination, "my orders/ä")
        assert envelope is not None
        event = Event("1", "t", None, b"1", None, 0, TIME)
        document = json.loads(envelope(event, Message("1", "t", None, b"1", {})).payload)
        assert document["source"] == "/outspark/my%20orders%2F%C3%A4"


class TestOmnibox:
    def test_schema_versioned(self) -> None:
        headers = {"schema_version": "2", "Content-Type": "application/vnd.order+json", "tenant": "a"}
        wrapped = wrap("schema-versioned", payload=b'{"n": 1.0}', headers=headers)
        assert wrapped.payload == b'{"schema_version":"2","payload":{"n": 1.0}}'
        assert wrapped.headers == {
            "schema_version": "2",
            "tenant": "a",
            "event_id": "1234-1234-1234",
            "event_type": "com.example.someevent",
            "content-type": "application/json",
        }

    def test_schema_versioned_without_a_version(self) -> None:
        assert wrap("schema-versioned").payload == b'{"schema_version":null,"payload":{}}'
        settled = wrap("schema-versioned", envelope_schema_version="3")
        assert settled.payload == b'{"schema_version":"3","payload":{}}'

    def test_full(self) -> None:
        headers = {
            "schema_version": "2",
            "aggregate_type": "Order",
            "aggregate_id": "b0b5",
            "trace_id": "t",
            "correlation_id": "c",
            "causation_id": "b",
        }
        wrapped = wrap("full", payload=b'{"n":1}', key="k", headers=headers)
        assert wrapped.payload == (
            b'{"schema_version":"2","event_type":"com.example.someevent","aggregate_type":"Order",'
            b'"aggregate_id":"b0b5","timestamp":"2018-04-05T03:56:24+00:00","trace_id":"t",'
            b'"correlation_id":"c","causation_id":"b","payload":{"n":1}}'
        )
        assert wrapped.headers == {
            **headers,
            "event_id": "1234-1234-1234",
            "event_type": "com.example.someevent",
            "content-type": "application/json",
        }

    def test_full_with_what_may_be_left_out(self) -> None:
        wrapped = wrap("full", key="b0b5", headers={"aggregate_type": "Order"})
        assert json.loads(wrapped.payload) == {
            "schema_version": "1.0.0",
            "event_type": "com.example.someevent",
            "aggregate_type": "Order",
            "aggregate_id": "b0b5",
            "timestamp": "2018-04-05T03:56:24+00:00",
            "payload": {},
        }

    @pytest.mark.parametrize(
        ("event", "reason"),
        [
            ({"key": "k"}, "needs the header 'aggregate_type', and the event has none"),
            ({"headers": {"aggregate_type": "Order"}}, "'aggregate_id'.* and no key to use instead"),
            ({"key": "k", "headers": {"aggregate_type": "Order"}, "payload": b"\xff"}, "not JSON"),
        ],
    )
    def test_full_says_what_is_missing(self, event: dict[str, Any], reason: str) -> None:
        with pytest.raises(EventInvalid, match=reason):
            wrap("full", **event)

    def test_schema_versioned_takes_json_only(self) -> None:
        with pytest.raises(EventInvalid, match="not JSON"):
            wrap("schema-versioned", payload=b"plain text")


@pytest.mark.parametrize("source", ["with space", "ä", "a\nb"])
def test_a_source_that_is_no_uri_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="must be a URI reference"):
        DestinationSettings(type="null", envelope_source=source)


@pytest.mark.parametrize("form", ["cloudevents-binary", "cloudevents-structured", "schema-versioned", "full"])
def test_stored_headers_stay(form: Any) -> None:
    destination = DestinationSettings(type="null", envelope=form)
    envelope = make_envelope(destination, "orders")
    assert envelope is not None
    headers = {"aggregate_type": "Order"}
    event = Event("1", "t", "k", b"{}", headers, 0, datetime(2026, 1, 1, tzinfo=UTC))
    stored = [("a", b"\xff"), ("a", None)]

    wrapped = envelope(event, Message("1", "t", "k", b"{}", headers, "k", stored))

    assert (wrapped.stored, wrapped.order_key, wrapped.key) == (stored, "k", "k")
