"""Partitions are kept on a schedule, of every table that asks for it, whatever happens to the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from outspark.config.settings import Settings
from outspark.contracts.omnibox.table import kind
from outspark.errors import TableInvalid
from outspark.maintenance.partitions import PartitionKeeper, interval
from outspark.tools.servers.postgres import Postgres
from tests.databases import Database
from tests.waiting import wait_for

INBOX = "inbox_events_partitioned"
OUTBOX = "outbox_events_partitioned"


def settings(inbox: str | None = None, outbox: str | None = None, **partitions: Any) -> Settings:
    inboxes: dict[str, Any] = {}
    sources: dict[str, Any] = {}
    if inbox is not None:
        inboxes["billing"] = {"url": inbox, "group": "g", "table": INBOX, "partitions": partitions}
    if outbox is not None:
        sources["shop"] = {"url": outbox, "contract": "omnibox", "table": OUTBOX, "partitions": partitions}
    return Settings.model_validate({"inboxes": inboxes, "sources": sources})


def keeper(settings: Settings) -> PartitionKeeper:
    made = PartitionKeeper.of(settings)
    assert made is not None
    made.retry_pause = timedelta(milliseconds=50)
    return made


def create(conn: psycopg.Connection[Any], *, inbox: bool) -> None:
    for statement in kind(inbox=inbox, partitioned=True).statements():
        conn.execute(statement.encode())


def partitions(conn: psycopg.Connection[Any], table: str) -> list[str]:
    rows = conn.execute(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass ORDER BY 1", [table]
    )
    return [row[0] for row in rows]


@contextmanager
def running(keeper: PartitionKeeper) -> Iterator[None]:
    stopping = threading.Event()
    thread = threading.Thread(target=keeper.run, args=[stopping], daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(10)
        assert not thread.is_alive()


def test_every_table_that_asks_for_it_is_kept_at_the_start(database: Database) -> None:
    conn = database.connect()
    create(conn, inbox=True)
    create(conn, inbox=False)

    with running(keeper(settings(database.url, database.url, ahead=1))):
        wait_for(
            lambda: len(partitions(conn, INBOX)) == len(partitions(conn, OUTBOX)) == 2, what="partitions"
        )


def test_what_is_old_goes(database: Database) -> None:
    conn = database.connect()
    create(conn, inbox=True)
    first = datetime.now(UTC) - timedelta(days=30)
    conn.execute(
        f"CREATE TABLE old PARTITION OF {INBOX} FOR VALUES FROM ('{first}') TO ('{first + timedelta(1)}')".encode()
    )

    assert keeper(settings(database.url, retention="7d")).keep("inboxes.billing").dropped == ("old",)


def test_nothing_to_keep() -> None:
    assert PartitionKeeper.of(Settings()) is None


def test_a_table_that_two_inboxes_share_is_kept_once() -> None:
    one = {"url": "postgresql://db/shop", "group": "a", "partitions": {}}
    kept = PartitionKeeper.of(Settings.model_validate({"inboxes": {"a": one, "b": {**one, "group": "b"}}}))

    assert kept is not None
    assert list(kept.tables) == ["inboxes.a"]


def test_a_database_that_is_away_is_tried_again_and_holds_up_nobody(
    database: Database, postgres_server: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    conn = database.connect()
    create(conn, inbox=True)
    later = f"{conn.info.dbname}_later"
    try:
        with running(keeper(settings(database.url, postgres_server.url(later), ahead=1))):
            wait_for(lambda: len(partitions(conn, INBOX)) == 2, what="partitions of the one that is there")
            wait_for(lambda: "partitions were not kept" in caplog.text, what="a warning about the other")
            conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(later)))
            with psycopg.connect(postgres_server.url(later), autocommit=True) as other:
                create(other, inbox=False)
                wait_for(lambda: len(partitions(other, OUTBOX)) == 2, what="partitions of the other")
    finally:
        conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(later)))
    failed = {record.__dict__["of"] for record in caplog.records if "not kept" in record.getMessage()}
    assert failed == {"sources.shop"}


def test_a_table_without_partitions_is_a_clear_error(database: Database) -> None:
    conn = database.connect()
    conn.execute(f"CREATE TABLE {INBOX} (id int)".encode())
    kept = keeper(settings(database.url))

    with pytest.raises(TableInvalid, match=f"table public.{INBOX} is not partitioned"):
        kept.keep("inboxes.billing")
    conn.execute(f"DROP TABLE {INBOX}; CREATE TABLE {INBOX} (id int) PARTITION BY LIST (id)".encode())
    with pytest.raises(TableInvalid, match=r"not partitioned by RANGE \(created_at\)"):
        kept.keep("inboxes.billing")


def test_the_interval() -> None:
    assert interval("hour") == timedelta(minutes=6)
    assert interval("day") == interval("month") == timedelta(hours=1)
