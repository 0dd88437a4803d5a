"""Enqueue with psycopg: in the caller's transaction, in order, once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from psycopg.rows import dict_row

from outspark.contracts.openoutbox.table import ddl
from outspark.database.names import TableName
from outspark.errors import EventInvalid
from outspark.outbox.openoutbox import NewEvent, Outbox
from tests.databases import Database


@pytest.fixture
def outbox(database: Database) -> Outbox:
    database.connect().execute(ddl())
    return Outbox()


def stored(database: Database, columns: str) -> list[tuple[Any, ...]]:
    query = f"SELECT {columns} FROM openoutbox_events ORDER BY created_at, event_id"
    return database.connect().execute(query).fetchall()


def test_an_event_is_a_pending_row(database: Database, outbox: Outbox) -> None:
    event = NewEvent("order.created", {"number": 7}, key="7", headers={"tenant": "a"})

    assert outbox.enqueue(database.connect(), event) == [event.id]

    columns = (
        "event_id, event_type, partition_key, payload, headers, status, attempts, available_at = created_at"
    )
    headers = {"tenant": "a", "content-type": "application/json"}
    assert stored(database, columns) == [
        (event.id, "order.created", "7", b'{"number":7}', headers, "PENDING", 0, True)
    ]
    assert stored(database, "locked_by, locked_at, delivered_at, last_error") == [(None, None, None, None)]


def test_it_lives_and_dies_with_the_callers_transaction(database: Database, outbox: Outbox) -> None:
    conn = psycopg.connect(database.url)
    outbox.enqueue(conn, NewEvent("t", b"rolled back"))
    assert stored(database, "1") == []
    conn.rollback()
    outbox.enqueue(conn, NewEvent("t", b"committed"))
    conn.commit()
    conn.close()

    assert stored(database, "payload") == [(b"committed",)]


def test_many_events_keep_their_order_whatever_their_ids(database: Database, outbox: Outbox) -> None:
    events = [NewEvent("t", str(number), key="k", id=uuid4()) for number in range(2000)]

    with database.connect() as conn, conn.transaction():
        outbox.enqueue(conn, *events[:1500])
        outbox.enqueue(conn, *events[1500:])

    assert [int(payload) for (payload,) in stored(database, "payload")] == list(range(2000))


def test_created_at_is_the_clock_and_not_the_start_of_the_transaction(
    database: Database, outbox: Outbox
) -> None:
    early, late = psycopg.connect(database.url), database.connect()
    early.execute("SELECT 1")
    outbox.enqueue(late, NewEvent("t", b"first"))
    outbox.enqueue(early, NewEvent("t", b"second"))
    early.commit()
    early.close()

    assert stored(database, "payload") == [(b"first",), (b"second",)]


def test_an_id_that_is_there_is_left_alone(database: Database, outbox: Outbox) -> None:
    conn = database.connect()
    first, second = NewEvent("t", b"1"), NewEvent("t", b"2")
    outbox.enqueue(conn, first)
    conn.execute("UPDATE openoutbox_events SET status = 'DELIVERED'")

    assert outbox.enqueue(conn, second, first, second) == [second.id]
    assert outbox.enqueue(conn, first) == []

    assert stored(database, "payload, status") == [(b"1", "DELIVERED"), (b"2", "PENDING")]


def test_events_can_be_scheduled(database: Database, outbox: Outbox) -> None:
    at = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    wait = timedelta(days=40, microseconds=5)

    outbox.enqueue(database.connect(), NewEvent("t", b"", available_at=at), NewEvent("t", b"", delay=wait))

    (absolute, _), (_, relative) = stored(database, "available_at, available_at - created_at")
    assert absolute == at
    assert relative == wait


def test_a_cursor_and_a_row_factory_of_the_callers_stay_as_they_are(
    database: Database, outbox: Outbox
) -> None:
    conn = psycopg.connect(database.url, row_factory=dict_row)
    cursor = conn.cursor()
    cursor.execute("SELECT generate_series(1, 2) AS n")
    event = NewEvent("t", b"")

    assert outbox.enqueue(cursor, event) == [event.id]

    assert cursor.fetchall() == [{"n": 1}, {"n": 2}]
    conn.close()


def test_connections_with_another_kind_of_cursor(database: Database, outbox: Outbox) -> None:
    for factory in (psycopg.ClientCursor, psycopg.RawCursor):
        with psycopg.connect(database.url, cursor_factory=factory) as conn:
            outbox.enqueue(conn, NewEvent("t", b"100%"))

    assert stored(database, "payload") == [(b"100%",)] * 2


def test_the_statement_can_be_run_by_the_caller(database: Database, outbox: Outbox) -> None:
    event = NewEvent("t", b"mine")

    assert database.connect().execute(*outbox.statement(event)).fetchall() == [(str(event.id),)]
    assert stored(database, "payload") == [(b"mine",)]


def test_an_async_connection(database: Database, outbox: Outbox) -> None:
    event = NewEvent("t", b"async")

    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(database.url) as conn:
            assert await outbox.enqueue_async(conn, event) == [event.id]
            assert await outbox.enqueue_async(conn.cursor(), event) == []
            assert await outbox.enqueue_async(conn) == []

    asyncio.run(run())
    assert stored(database, "payload") == [(b"async",)]


def test_another_table_in_another_schema(database: Database) -> None:
    conn = database.connect()
    conn.execute('CREATE SCHEMA "Sales"')
    conn.execute(ddl(TableName.parse('"Sales"."Order Events"')))

    assert len(Outbox('"Sales"."Order Events"').enqueue(conn, NewEvent("t", b""))) == 1


def test_nothing_is_written_when_one_of_many_is_invalid(database: Database, outbox: Outbox) -> None:
    with pytest.raises(EventInvalid, match="type is empty"):
        outbox.enqueue(database.connect(), NewEvent("t", b""), NewEvent("", b""))

    assert stored(database, "1") == []


def test_no_events_are_no_work(database: Database, outbox: Outbox) -> None:
    assert outbox.enqueue(database.connect()) == []


def test_a_wrong_handle_is_refused(outbox: Outbox) -> None:
    with pytest.raises(TypeError, match=r"enqueue cannot write through builtins\.str; it takes a psycopg"):
        outbox.enqueue("postgresql://", NewEvent("t", b""))  # type: ignore[arg-type]


def test_an_async_connection_is_told_of_the_async_call(database: Database, outbox: Outbox) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(database.url) as conn:
            for handle in (conn, conn.cursor()):
                with pytest.raises(
                    TypeError, match=r"cannot write through psycopg\..*enqueue_async takes their async"
                ):
                    outbox.enqueue(handle, NewEvent("t", b""))  # type: ignore[arg-type]
        with pytest.raises(
            TypeError, match=r"enqueue_async cannot write through psycopg\..*enqueue takes their sync"
        ):
            await outbox.enqueue_async(database.connect(), NewEvent("t", b""))  # type: ignore[arg-type]

    asyncio.run(run())
    assert stored(database, "1") == []


def test_the_trace_context_of_the_current_span_goes_along(database: Database, outbox: Outbox) -> None:
    conn = database.connect()
    tracer = TracerProvider().get_tracer("test")
    expected: dict[str, str] = {}
    with tracer.start_as_current_span("order") as span:
        parent = span.get_span_context()
        state = trace.TraceState([("vendor", "7")])
        context = trace.SpanContext(parent.trace_id, parent.span_id, False, parent.trace_flags, state)
        with trace.use_span(trace.NonRecordingSpan(context)):
            TraceContextTextMapPropagator().inject(expected)
            outbox.enqueue(conn, NewEvent("t", b"", headers={"a": "b"}))
            outbox.enqueue(conn, NewEvent("t", b"", headers={"traceparent": "mine"}))
    outbox.enqueue(conn, NewEvent("t", b""))

    assert sorted(expected) == ["traceparent", "tracestate"]
    assert stored(database, "headers") == [({"a": "b", **expected},), ({"traceparent": "mine"},), ({},)]


def test_enqueue_imports_nothing_that_it_does_not_use() -> None:
    program = (
        "import sys, outspark.outbox.openoutbox\n"
        "outspark.outbox.openoutbox.Outbox().statement(outspark.outbox.openoutbox.NewEvent('t', {'a': 1}))\n"
        "print(*sorted({'pyspark', 'sqlalchemy', 'opentelemetry', 'pydantic', 'nats'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
