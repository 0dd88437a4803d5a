"""Sending at once to Kafka: what arrives, what is left to the relay, and how long a caller is held."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from confluent_kafka import Message as Record
from opentelemetry import trace
from sqlalchemy.orm import Session

from outspark.errors import SettingsError
from outspark.outbox.jeap import JeapOutbox, NewMessage
from outspark.tools.servers.kafka import Kafka
from outspark.tools.servers.server import free_port
from tests.integration.brokers.kafka_rig import KafkaRig, records, shared_server
from tests.integration.outbox.jeap.harness import SHORT, Harness, message
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("kafka")

NOWHERE = {"type": "kafka", "url": "kafka://127.0.0.1:1"}
TRACEPARENT = "00-8af7651916cd43ddf448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def rig() -> Iterator[KafkaRig]:
    with closing(KafkaRig(shared_server())) as rig:
        yield rig


def kafka(rig: KafkaRig, **options: Any) -> dict[str, Any]:
    return {"type": "kafka", "url": rig.server.url, "options": options}


def send(harness: Harness, outbox: JeapOutbox, *messages: NewMessage) -> float:
    """How long the caller was held."""
    with psycopg.connect(harness.database.url) as conn:
        started = time.monotonic()
        with outbox.transaction(conn) as tx:
            tx.send(*messages)
        return time.monotonic() - started


def arrived(rig: KafkaRig, topic: str | None = None) -> list[Record]:
    return records(rig.server, topic or rig.topic)


def headers(record: Record) -> dict[str, Any]:
    return dict(record.headers() or [])


def test_a_committed_message_arrives_byte_by_byte(harness: Harness, engine: sa.Engine, rig: KafkaRig) -> None:
    outbox = harness.outbox(destination=kafka(rig))
    sent = message(b"\x00\xff", rig.topic, key=b"\xfe\x00", id="order-7")
    with Session(engine) as session, session.begin():
        outbox.send(session, sent)

    [record] = arrived(rig)
    assert (record.key(), record.value()) == (b"\xfe\x00", b"\x00\xff")
    assert headers(record) == {"X-Event-ID": b"order-7"}
    assert harness.row().sent_immediately
    assert harness.transmitted() == 1


def test_what_is_rolled_back_never_arrives(harness: Harness, engine: sa.Engine, rig: KafkaRig) -> None:
    outbox = harness.outbox(destination=kafka(rig))
    with Session(engine) as session:
        with session.begin():
            outbox.send(session, message(b"rolled back", rig.topic))
            session.rollback()
        with session.begin():
            outbox.send(session, message(b"committed", rig.topic))

    assert [record.value() for record in arrived(rig)] == [b"committed"]


def test_messages_of_a_transaction_arrive_in_order(harness: Harness, rig: KafkaRig) -> None:
    outbox = harness.outbox(destination=kafka(rig))
    send(harness, outbox, *(message(b"%d" % n, rig.topic, key=b"k" if n % 2 else None) for n in range(50)))

    assert [record.value() for record in arrived(rig)] == [b"%d" % n for n in range(50)]


def test_the_trace_is_stored_and_goes_out(harness: Harness, rig: KafkaRig) -> None:
    outbox = harness.outbox(destination=kafka(rig), trace="both")
    _, trace_id, span_id, flags = TRACEPARENT.split("-")
    context = trace.SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=trace.TraceFlags(int(flags, 16))
    )
    with trace.use_span(trace.NonRecordingSpan(context)):
        send(harness, outbox, message(topic=rig.topic))

    row = harness.row()
    assert (row.trace_id_string, row.sampled, row.parent_span_id) == (trace_id, True, None)
    halves = [int(half, 16) - (1 << 64) for half in (trace_id[:16], trace_id[16:], span_id)]
    assert [row.trace_id_high, row.trace_id, row.span_id] == halves
    [record] = arrived(rig)
    assert headers(record)["traceparent"] == TRACEPARENT.encode()
    assert headers(record)["b3"] == f"{trace_id}-{span_id}-1".encode()


def test_a_message_that_is_too_large_fails_alone(harness: Harness, rig: KafkaRig) -> None:
    outbox = harness.outbox(destination=kafka(rig))
    large = message(b"x" * 1_100_000, rig.topic, key=b"large")
    send(harness, outbox, large, message(b"small", rig.topic, key=b"small"))

    failed, sent = harness.rows()
    assert (failed.fail_reason, failed.sent_immediately, failed.resend) == ("MESSAGE_TOO_LARGE", None, False)
    assert failed.failed is not None
    assert sent.sent_immediately is not None
    assert [record.value() for record in arrived(rig)] == [b"small"]
    assert harness.ready() == []
    assert harness.transmitted() == 1


def test_a_topic_that_does_not_exist(harness: Harness, rig: KafkaRig) -> None:
    options = {"allow.auto.create.topics": False, "topic.metadata.propagation.max.ms": 200}
    outbox = harness.outbox(destination=kafka(rig, **options))
    send(harness, outbox, message(topic=f"{rig.topic}.missing"))

    assert harness.row().fail_reason == "INVALID_TOPIC"


def test_clusters_have_destinations_of_their_own(harness: Harness, rig: KafkaRig) -> None:
    other = kafka(rig, **{"client.id": "other"}) | {"max_payload": 5}
    outbox = harness.outbox(destination=kafka(rig), clusters={"other": other}, cluster="unknown")
    send(
        harness,
        outbox,
        message(b"of default", rig.topic),
        message(b"of other", rig.topic, cluster="other"),
    )

    default, of_other = harness.rows()
    assert (default.cluster_name, of_other.cluster_name) == ("unknown", "other")
    assert default.sent_immediately
    assert of_other.fail_reason == "MESSAGE_TOO_LARGE"


def test_a_broker_that_is_down_leaves_the_message_to_the_relay(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = harness.outbox(destination=NOWHERE, **SHORT)
    assert send(harness, outbox, message(b"secret body")) < 3

    row = harness.row()
    assert row.waits
    assert 1.5 <= row.hold < 3
    assert wait_for(harness.ready, what="the relay's turn") == [row.id]
    assert harness.posted("immediate") == {"committed": 1}
    assert harness.transmitted() == 0
    assert "messages are left to the relay" in caplog.text
    assert "secret body" not in caplog.text


@pytest.mark.parametrize("bound", [0.5, 1.5])
def test_a_broker_that_hangs_holds_the_caller_no_longer_than_the_bound(
    harness: Harness, bound: float
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = {"type": "kafka", "url": f"kafka://127.0.0.1:{silent.getsockname()[1]}"}
        limits = {**SHORT, "immediate_block": SHORT["immediate_block"] * (bound / 0.5)}
        outbox = harness.outbox(destination=hanging, **limits)
        first = send(harness, outbox, message())
        # While it is known to be down, nobody waits for it again.
        second = send(harness, outbox, message())

    assert min(bound, 1.0) <= first < min(bound, 1.0) + 1
    assert second < 0.5
    assert [row.waits for row in harness.rows()] == [True, True]
    wait_for(lambda: len(harness.ready()) == 2, what="the relay's turn")


def test_a_broker_that_stops_to_answer_holds_the_caller_no_longer_than_the_bound(
    harness: Harness, rig: KafkaRig
) -> None:
    outbox = harness.outbox(destination=kafka(rig), **SHORT)
    send(harness, outbox, message(topic=rig.topic))
    os.kill(rig.server.pid, signal.SIGSTOP)
    try:
        held = send(harness, outbox, message(topic=rig.topic))
    finally:
        os.kill(rig.server.pid, signal.SIGCONT)

    assert 1 <= held < 2
    first, second = harness.rows()
    assert first.sent_immediately
    assert second.waits


def test_a_broker_that_comes_back_is_used_again(harness: Harness) -> None:
    server = Kafka(port=free_port(), quick=True)
    outbox = harness.outbox(destination={"type": "kafka", "url": f"kafka://127.0.0.1:{server.port}"}, **SHORT)

    def sent() -> bool:
        send(harness, outbox, message())
        return harness.rows()[-1].sent_immediately is not None

    assert not sent()
    with server:
        wait_for(sent, timeout=30, what="a message that was sent at once")


def test_a_bound_that_is_no_duration_is_refused(harness: Harness) -> None:
    with pytest.raises(
        SettingsError, match=r"destinations\.default\.options: max_block: not a duration: 'soon'"
    ):
        harness.outbox(destination={"type": "kafka", "options": {"max_block": "soon"}})


def test_threads_send_side_by_side(harness: Harness, rig: KafkaRig) -> None:
    outbox = harness.outbox(destination=kafka(rig))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: send(harness, outbox, message(b"%d" % n, rig.topic)), range(20)))

    assert {record.value() for record in arrived(rig)} == {b"%d" % n for n in range(20)}
    assert all(row.sent_immediately for row in harness.rows())
    assert harness.posted("immediate") == {"committed": 20}
