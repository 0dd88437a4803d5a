"""Enqueue on an omni-box outbox: in the caller's transaction, in order, once, and with an answer for each event."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from outspark.contracts.omnibox.table import kind
from outspark.database.names import TableName
from outspark.errors import EventInvalid, TransactionRequired
from outspark.outbox.new_event import Limits
from outspark.outbox.omnibox import Enqueued, NewOutboxEvent, OmniboxOutbox
from tests.databases import Database
from tests.integration.contracts.autogenerate import engine_of
from tests.waiting import wait_for

TABLE = TableName("outbox_events")
PARTITION = "CREATE TABLE p PARTITION OF outbox_events FOR VALUES FROM ('2000-01-01') TO ('2100-01-01')"


@pytest.fixture(params=[False, True], ids=["plain", "partitioned"])
def outbox(request: pytest.FixtureRequest, database: Database) -> OmniboxOutbox:
    conn = database.connect()
    conn.execute(kind(partitioned=request.param).ddl(TABLE))
    if request.param:
        conn.execute(PARTITION)
    return OmniboxOutbox()


@pytest.fixture
def conn(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database.url) as conn:
        yield conn


def event(payload: Any = None, **more: Any) -> NewOutboxEvent:
    given = {"aggregate_type": "order", "aggregate_id": uuid4(), "topic": "orders", **more}
    return NewOutboxEvent(given.pop("type", "order.paid"), {"n": 1} if payload is None else payload, **given)


def stored(database: Database, columns: str) -> list[tuple[Any, ...]]:
    query = f"SELECT {columns} FROM outbox_events ORDER BY created_at, id"
    return database.connect().execute(query.encode()).fetchall()


def test_an_event_is_a_pending_row(
    database: Database, outbox: OmniboxOutbox, conn: psycopg.Connection[Any]
) -> None:
    new = event(
        {"number": 7},
        headers={"tenant": "a"},
        idempotency_key="i",
        correlation_id="c",
        causation_id="u",
        trace_id="t",
        schema_version="2",
        max_attempts=3,
    )

    assert outbox.enqueue(conn, new) == [Enqueued(new.id, True)]
    assert stored(database, "1") == []
    conn.commit()

    assert stored(
        database,
        "id, event_type, aggregate_type, aggregate_id, topic, partition_key, payload, headers, idempotency_key, "
        "correlation_id, causation_id, trace_id, schema_version, max_attempts",
    ) == [
        (
            new.id,
            "order.paid",
            "order",
            new.aggregate_id,
            "orders",
            str(new.aggregate_id),
            {"number": 7},
            {"tenant": "a"},
            "i",
            "c",
            "u",
            "t",
            "2",
            3,
        )
    ]
    assert stored(
        database, "status, attempts_made, scheduled_at = created_at, updated_at = created_at, locked_by"
    ) == [("pending", 0, True, True, None)]


def test_it_lives_and_dies_with_the_callers_transaction(
    database: Database, outbox: OmniboxOutbox, conn: psycopg.Connection[Any]
) -> None:
    outbox.enqueue(conn, event())
    conn.rollback()

    assert stored(database, "1") == []


def test_events_of_a_call_are_a_microsecond_apart(
    database: Database, outbox: OmniboxOutbox, conn: psycopg.Connection[Any]
) -> None:
    outbox.enqueue(conn, *(event({"n": n}, id=uuid4()) for n in range(50)))
    conn.commit()

    rows = stored(database, "payload, created_at")
    assert [payload["n"] for payload, _ in rows] == list(range(50))
    times = [at for _, at in rows]
    assert {later - earlier for earlier, later in pairwise(times)} == {timedelta(microseconds=1)}


def test_times_are_right_in_whatever_zone(
    database: Database, outbox: OmniboxOutbox, conn: psycopg.Connection[Any]
) -> None:
    conn.execute("SET timezone = 'Asia/Tokyo'")
    outbox.enqueue(conn, event())
    conn.commit()

    query = "clock_timestamp() - created_at < interval '1 minute', created_at <= clock_timestamp()"
    assert stored(database, query) == [(True, True)]


def test_a_schedule(database: Database, outbox: OmniboxOutbox, conn: psycopg.Connection[Any]) -> None:
    at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    outbox.enqueue(conn, event(scheduled_at=at), event(delay=timedelta(hours=1)))
    conn.commit()

    assert stored(database, "scheduled_at = '2030-01-02 03:04:05+00', scheduled_at - created_at") == [
        (True, stored(database, "scheduled_at - created_at")[0][0]),
        (False, timedelta(hours=1)),
    ]


def test_an_idempotency_key_is_taken_once(
    database: Database, outbox: OmniboxOutbox, conn: psycopg.Connection[Any]
) -> None:
    first, second, other = event(idempotency_key="k"), event(idempotency_key="k"), event(idempotency_key="l")
    outbox.enqueue(conn, first)
    conn.commit()

    answer = outbox.enqueue(conn, second, other, first)
    conn.commit()

    assert answer == [Enqueued(first.id, False), Enqueued(other.id, True), Enqueued(first.id, False)]
    assert {id for (id,) in stored(database, "id")} == {first.id, other.id}


def test_an_id_is_taken_once(
    database: Database, outbox: OmniboxOutbox, conn: psycopg.Connection[Any]
) -> None:
    new = event()

    assert outbox.enqueue(conn, new) == [Enqueued(new.id, True)]
    assert outbox.enqueue(conn, new, event(id=new.id)) == [Enqueued(new.id, False)] * 2
    conn.commit()

    assert len(stored(database, "1")) == 1


def test_the_same_again_in_one_call_is_not_new(
    database: Database, outbox: OmniboxOutbox, conn: psycopg.Connection[Any]
) -> None:
    one, same_key, plain = event(idempotency_key="k"), event(idempotency_key="k"), event()

    answer = outbox.enqueue(conn, one, same_key, plain, plain)
    conn.commit()

    assert answer == [
        Enqueued(one.id, True),
        Enqueued(one.id, False),
        Enqueued(plain.id, True),
        Enqueued(plain.id, False),
    ]
    assert len(stored(database, "1")) == 2


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_two_at_the_same_moment_with_one_key(
    database: Database, outbox: OmniboxOutbox, conn: psycopg.Connection[Any], outcome: str
) -> None:
    """The second waits for the first, and is new only if that did not come to be."""
    first, second = event(idempotency_key="k"), event(idempotency_key="k")
    outbox.enqueue(conn, first)
    answers: list[Enqueued] = []

    def enqueue_second() -> None:
        with psycopg.connect(database.url) as other:
            answers.extend(outbox.enqueue(other, second))

    thread = threading.Thread(target=enqueue_second)
    thread.start()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    watcher = database.connect()
    wait_for(lambda: watcher.execute(waits).fetchone() == (1,), what="the second to wait")
    getattr(conn, outcome)()
    thread.join()

    expected = Enqueued(first.id, False) if outcome == "commit" else Enqueued(second.id, True)
    assert answers == [expected]
    assert stored(database, "id") == [(expected.id,)]


def test_other_keys_wait_for_nobody(
    database: Database, outbox: OmniboxOutbox, conn: psycopg.Connection[Any]
) -> None:
    outbox.enqueue(conn, event(idempotency_key="k"), event())

    with psycopg.connect(database.url) as other:
        other.execute("SET lock_timeout = '5s'")
        assert outbox.enqueue(other, event(idempotency_key="l"), event())[0].new

    conn.commit()
    assert len(stored(database, "1")) == 4


def test_many_at_once_write_each_key_once_and_know_who_did(database: Database, outbox: OmniboxOutbox) -> None:
    start = threading.Barrier(4)

    def enqueue(number: int) -> list[Enqueued]:
        answers = []
        # Each in an order of its own, one key a transaction, so that nobody waits for one who waits.
        keys = [f"k{n}" for n in range(30)]
        with psycopg.connect(database.url) as conn:
            start.wait()
            for key in keys[number * 7 :] + keys[: number * 7]:
                answers += outbox.enqueue(conn, event({"writer": number}, idempotency_key=key))
                conn.commit()
        return answers

    with ThreadPoolExecutor(4) as pool:
        answers = [answer for found in pool.map(enqueue, range(4)) for answer in found]

    ids = {id for (id,) in stored(database, "id")}
    assert len(ids) == 30
    assert sorted(answer.id for answer in answers if answer.new) == sorted(ids)
    assert {answer.id for answer in answers} == ids


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_that_is_older_than_the_wait_is_refused(
    database: Database, outbox: OmniboxOutbox, conn: psycopg.Connection[Any], level: str
) -> None:
    conn.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
    assert outbox.enqueue(conn, event())[0].new
    if not outbox._partitioned:
        assert outbox.enqueue(conn, event(idempotency_key="k"))[0].new
        return
    with pytest.raises(TransactionRequired, match=f"need READ COMMITTED, and the transaction is {level}"):
        outbox.enqueue(conn, event(idempotency_key="k"))


def test_keys_in_a_partitioned_table_need_a_transaction(database: Database, outbox: OmniboxOutbox) -> None:
    alone = database.connect()
    with alone.transaction():
        assert outbox.enqueue(alone, event(idempotency_key="k"))[0].new
    assert outbox.enqueue(alone, event())[0].new
    if not outbox._partitioned:
        assert outbox.enqueue(alone, event(idempotency_key="l"))[0].new
        return
    with pytest.raises(TransactionRequired, match="need a transaction"):
        outbox.enqueue(alone, event(idempotency_key="l"))
    assert alone.info.transaction_status is TransactionStatus.IDLE


def test_nothing_is_nothing(outbox: OmniboxOutbox, conn: psycopg.Connection[Any]) -> None:
    assert outbox.enqueue(conn) == []


def test_a_table_that_comes_later_is_looked_at_then(
    database: Database, conn: psycopg.Connection[Any]
) -> None:
    outbox = OmniboxOutbox("later")
    with pytest.raises(psycopg.errors.UndefinedTable):
        outbox.enqueue(conn, event())
    conn.rollback()
    admin = database.connect()
    admin.execute(kind(partitioned=True).ddl(TableName("later")))
    admin.execute("CREATE TABLE p PARTITION OF later FOR VALUES FROM ('2000-01-01') TO ('2100-01-01')")

    assert [outbox.enqueue(conn, event(idempotency_key="k"))[0].new for _ in range(2)] == [True, False]


def test_the_callers_cursor_is_left_alone(outbox: OmniboxOutbox, conn: psycopg.Connection[Any]) -> None:
    cursor = conn.cursor(row_factory=dict_row)
    cursor.execute("SELECT 1 AS one")

    assert outbox.enqueue(cursor, event(idempotency_key="k"))[0].new
    assert not outbox.enqueue(cursor, event(idempotency_key="k"))[0].new
    assert cursor.fetchone() == {"one": 1}


def test_through_sqlalchemy(database: Database, outbox: OmniboxOutbox) -> None:
    first, second = event(idempotency_key="k"), event(idempotency_key="k")
    with engine_of(database) as engine:
        with orm.Session(engine) as session:
            assert outbox.enqueue(session, first) == [Enqueued(first.id, True)]
            session.commit()
        with engine.begin() as connection:
            assert outbox.enqueue(connection, second) == [Enqueued(first.id, False)]
        with engine.connect() as rolled_back:
            assert outbox.enqueue(rolled_back, event())[0].new

    assert stored(database, "id") == [(first.id,)]


def test_through_sqlalchemy_in_autocommit(database: Database, outbox: OmniboxOutbox) -> None:
    with engine_of(database) as engine, engine.connect() as plain:
        outbox.enqueue(plain, event())
        plain.rollback()
        alone = plain.execution_options(isolation_level="AUTOCOMMIT")
        if outbox._partitioned:
            with pytest.raises(TransactionRequired):
                outbox.enqueue(alone, event(idempotency_key="k"))
        else:
            assert outbox.enqueue(alone, event(idempotency_key="k"))[0].new


def test_awaiting(database: Database, outbox: OmniboxOutbox) -> None:
    first, second = event(idempotency_key="k"), event(idempotency_key="k")

    async def enqueue() -> list[list[Enqueued]]:
        answers = []
        async with await psycopg.AsyncConnection.connect(database.url) as conn:
            answers.append(await outbox.enqueue_async(conn, first))
            answers.append(await outbox.enqueue_async(conn.cursor(), second))
        engine = create_async_engine(database.url.replace("postgresql://", "postgresql+psycopg://"))
        async with AsyncSession(engine) as session, session.begin():
            answers.append(await outbox.enqueue_async(session, second))
        async with engine.begin() as connection:
            answers.append(await outbox.enqueue_async(connection, second))
        await engine.dispose()
        return answers

    known = [Enqueued(first.id, False)]
    assert asyncio.run(enqueue()) == [[Enqueued(first.id, True)], known, known, known]
    assert stored(database, "id") == [(first.id,)]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"type": "x" * 101}, "type has 101 characters, allowed: 100"),
        ({"type": " "}, "type is empty"),
        ({"topic": ""}, "topic is empty"),
        ({"topic": "x" * 256}, "topic has 256 characters, allowed: 255"),
        ({"aggregate_type": "x" * 51}, "aggregate_type has 51 characters, allowed: 50"),
        ({"aggregate_id": "7"}, "aggregate_id is str, allowed: uuid.UUID"),
        ({"key": "x" * 256}, "key has 256 characters, allowed: 255"),
        ({"key": ""}, "key is empty"),
        ({"idempotency_key": "x" * 129}, "idempotency_key has 129 characters, allowed: 128"),
        ({"correlation_id": 7}, "correlation_id is int, allowed: str"),
        ({"schema_version": "a\0"}, "schema_version is empty or has a NUL"),
        ({"max_attempts": 0}, "max_attempts is 0, allowed: a whole number from 1 on"),
        ({"payload": b"\xff"}, "payload is not JSON"),
        ({"payload": "{"}, "payload is not JSON"),
        ({"payload": {"a": "\0"}}, "payload has a NUL in a string"),
        ({"payload": r'"\\\u0000"'}, "payload has a NUL in a string"),
        ({"payload": {"a": float("nan")}}, "payload is not JSON"),
        ({"payload": "[" + "1," * 200 + "1]"}, "payload has 403 bytes, allowed: 200"),
        ({"headers": {"a": 7}}, "header 'a' is int, allowed: str"),
        ({"scheduled_at": datetime(2030, 1, 1)}, "allowed: a datetime with a time zone"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    fields: dict[str, Any], problem: str, database: Database
) -> None:
    outbox = OmniboxOutbox(limits=Limits(payload=200))

    with pytest.raises(EventInvalid) as refused:
        outbox.enqueue(database.connect(), event(**fields))

    assert problem in str(refused.value)


@pytest.mark.parametrize("payload", [r'{"a": "\\u0000"}', b"17", "null", [1, 2], '{"n": 1.10, "n": 2}'])
def test_whatever_is_json_is_taken(
    payload: Any, database: Database, outbox: OmniboxOutbox, conn: psycopg.Connection[Any]
) -> None:
    outbox.enqueue(conn, event(payload))
    conn.commit()

    assert len(stored(database, "1")) == 1


def test_the_trace_of_a_given_parent_is_kept(
    database: Database, outbox: OmniboxOutbox, conn: psycopg.Connection[Any]
) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    outbox.enqueue(conn, event(headers={"traceparent": parent}), event())
    conn.commit()

    assert stored(database, "trace_id, headers") == [
        ("0af7651916cd43dd8448eb211c80319c", {"traceparent": parent}),
        (None, None),
    ]


def test_another_handle_is_refused(outbox: OmniboxOutbox) -> None:
    with pytest.raises(TypeError, match=r"cannot write through builtins.str"):
        outbox.enqueue("postgresql://", event())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="AsyncConnection"):
        asyncio.run(outbox.enqueue_async(sa.create_engine("postgresql+psycopg://"), event()))  # type: ignore[arg-type]


def test_ids_are_time_ordered() -> None:
    ids: list[UUID] = [event().id for _ in range(3)]

    assert ids == sorted(ids)
    assert {id.version for id in ids} == {7}
