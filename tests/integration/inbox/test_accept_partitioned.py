"""On a partitioned inbox a redelivery is a duplicate in whatever minute, partition and process it comes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outspark.errors import PartitionMissing, TransactionRequired
from outspark.inbox import Duplicate, New, OutOfPartitions
from outspark.maintenance.partitions import Partitions
from tests.integration.inbox.harness import Harness, message, uuid7_at

DAY = timedelta(days=1)


def today() -> datetime:
    return datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)


def test_a_time_ordered_id_brings_its_own_time(parted: Harness) -> None:
    id = uuid7_at(today())

    parted.accept(message(id, timestamp=today() + timedelta(hours=1)))

    assert parted.row(id)["created_at"] == today()
    # Published again, so the broker has another time for it, and that lies in another partition.
    assert parted.accept(message(id, timestamp=today() + DAY)) == [Duplicate("message_id")]


def test_an_event_time_header_counts_too(parted: Harness) -> None:
    headers = [("ce_id", "A-1"), ("ce_time", today().isoformat())]

    parted.accept(message(None, headers=headers))

    assert parted.row("A-1")["created_at"] == today()
    assert parted.accept(message(None, headers=headers, timestamp=today() + DAY)) == [Duplicate("message_id")]


def test_a_place_in_the_broker_has_the_brokers_time(parted: Harness) -> None:
    record = message(None, offset=7, timestamp=today())

    parted.accept(record)

    assert parted.row("orders-0-7")["created_at"] == today()
    assert parted.accept(record) == [Duplicate("message_id")]


def test_an_id_without_time_is_looked_for_in_all_partitions(parted: Harness) -> None:
    parted.accept(message("order-7", timestamp=today()))

    assert parted.accept(message("order-7", timestamp=today() + DAY)) == [Duplicate("message_id")]


def test_a_message_without_any_time_is_still_taken_once(parted: Harness) -> None:
    assert isinstance(parted.accept(message("order-7", timestamp=None))[0], New)
    assert parted.accept(message("order-7", timestamp=None)) == [Duplicate("message_id")]


def test_an_idempotency_key_counts_across_partitions(parted: Harness) -> None:
    headers = [("Idempotency-Key", "k")]
    parted.accept(message(uuid7_at(today()), headers=headers))

    [outcome] = parted.accept(message(uuid7_at(today() + DAY), headers=headers))

    assert outcome == Duplicate("idempotency_key")


IN_ANOTHER_PROCESS = """
import json, sys
from datetime import datetime
import psycopg
from outspark.inbox import Acceptor, AcceptSettings, Received

url, table, timestamp, *headers = sys.argv[1:]
with psycopg.connect(url, autocommit=True) as conn:
    conn.execute("SET TimeZone = 'Pacific/Apia'")
    acceptor = Acceptor(conn, table, AcceptSettings(group="billing"))
    batch = [
        Received("orders", b"{}", json.loads(each), timestamp=datetime.fromisoformat(timestamp), partition=5, offset=n)
        for n, each in enumerate(headers)
    ]
    print(*acceptor.accept(batch), sep="\\n")
"""


def test_another_process_knows_what_comes_again_in_another_minute_and_partition(parted: Harness) -> None:
    """Of the broker as well as of the table: published again, a message has another time and place."""
    headers: list[Any] = [
        [("X-Event-ID", uuid7_at(today()))],
        [("X-Event-ID", "order-7")],
        [("ce_id", "A-1"), ("ce_time", today().isoformat())],
        [("X-Event-ID", "x" * 300)],
        [("X-Event-ID", "order-8"), ("Idempotency-Key", "k")],
    ]
    first = parted.accept(*(message(None, headers=each, timestamp=today()) for each in headers))
    assert {type(outcome) for outcome in first} == {New}
    headers[-1] = [("X-Event-ID", "order-9"), ("Idempotency-Key", "k")]

    for later in (timedelta(minutes=1), DAY):
        arguments = [
            parted.database.url,
            parted.table,
            (today() + later).isoformat(),
            *map(json.dumps, headers),
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", IN_ANOTHER_PROCESS, *arguments]
        said = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=True
        ).stdout.splitlines()
        assert said == ["Duplicate(by='message_id')"] * 4 + ["Duplicate(by='idempotency_key')"]
    assert len(parted.states()) == 5


@pytest.mark.parametrize("off", [-400 * DAY, 400 * DAY, 5000 * 365 * DAY], ids=["past", "ahead", "absurd"])
def test_a_time_outside_all_partitions_is_kept_as_dead_and_the_rest_goes_on(
    parted: Harness, off: timedelta
) -> None:
    stray = message(uuid7_at(today() + off))

    outcomes = parted.accept(message("a"), stray, message("b"))

    assert [type(o) for o in outcomes] == [New, OutOfPartitions, New]
    row = parted.row(uuid7_at(today() + off))
    assert row["status"] == "failed"
    assert "no partition covers" in row["last_error"]
    # It is known from now on, though its row is not where its time says.
    assert parted.accept(stray) == [Duplicate("message_id")]


@pytest.mark.parametrize("id", ["order-7", None])
@pytest.mark.parametrize("off", [-400 * DAY, 400 * DAY], ids=["past", "ahead"])
def test_a_time_of_the_broker_outside_all_partitions_is_no_better(
    parted: Harness, id: str | None, off: timedelta
) -> None:
    stray = message(id, timestamp=today() + off)

    outcomes = parted.accept(stray, message("a"))

    assert [type(o) for o in outcomes] == [OutOfPartitions, New]
    assert parted.accept(stray) == [Duplicate("message_id")]


def test_a_stray_is_known_when_its_time_has_a_partition_by_then(parted: Harness) -> None:
    stray = message(uuid7_at(today() - 10 * DAY))
    [outcome] = parted.accept(stray)
    assert isinstance(outcome, OutOfPartitions)
    start = (today() - 10 * DAY).date()
    parted.conn.execute(
        f"CREATE TABLE late PARTITION OF {parted.table} FOR VALUES FROM ('{start}') TO ('{start + DAY}')".encode()
    )

    assert parted.accept(stray) == [Duplicate("message_id")]


def test_without_a_partition_for_the_present_nothing_is_taken_in(parted: Harness) -> None:
    for (name,) in parted.ask(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass", parted.table
    ):
        parted.conn.execute(f"DROP TABLE {name}".encode())
    acceptor = parted.acceptor()

    with pytest.raises(PartitionMissing, match="Partitions"):
        acceptor.accept([message("m1")])

    Partitions(parted.conn, parted.table).create_ahead()
    assert isinstance(acceptor.accept([message("m1")])[0], New)


def test_a_partition_that_goes_meanwhile_is_noticed(parted: Harness) -> None:
    acceptor = parted.acceptor()
    tomorrow = today() + DAY
    acceptor.accept([message(uuid7_at(tomorrow))])
    name = parted.table + "_p" + tomorrow.strftime("%Y%m%d")
    parted.conn.execute(f"DROP TABLE {name}".encode())

    other = uuid7_at(tomorrow + timedelta(hours=1))
    outcomes = acceptor.accept([message("a"), message(other)])

    assert [type(o) for o in outcomes] == [New, OutOfPartitions]


def test_who_waited_for_others_has_to_see_what_they_took_in(parted: Harness) -> None:
    acceptor = parted.acceptor()
    with acceptor.conn.transaction():
        acceptor.conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(TransactionRequired, match="READ COMMITTED"), acceptor.conn.transaction():
            acceptor.accept([message("order-7")])

    # Its own transactions do not go by the database's default.
    acceptor.conn.execute("SET default_transaction_isolation = 'serializable'")
    assert isinstance(acceptor.accept([message("order-7")])[0], New)
    assert acceptor.accept([message("order-7")]) == [Duplicate("message_id")]


def test_a_default_partition_takes_all(parted: Harness) -> None:
    parted.conn.execute(f"CREATE TABLE rest PARTITION OF {parted.table} DEFAULT".encode())

    [outcome] = parted.accept(message(uuid7_at(today() - 400 * DAY)))

    assert isinstance(outcome, New)


def test_times_are_right_in_a_session_that_is_not_in_utc(parted: Harness) -> None:
    acceptor = parted.acceptor()
    acceptor.conn.execute("SET TimeZone = 'Asia/Kathmandu'")
    id = uuid7_at(today())

    acceptor.accept([message(id), message("order-7", timestamp=None)])

    assert parted.row(id)["created_at"] == today()
    assert abs(parted.row("order-7")["created_at"] - datetime.now(UTC)) < timedelta(minutes=1)
