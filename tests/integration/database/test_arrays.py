"""Arrays as they come to PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from outspark.database.arrays import Texts, Times, Uuids, register
from tests.databases import Database

NOON = datetime(2026, 11, 16, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture
def conn(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database.url, autocommit=True) as conn:
        register(conn)
        yield conn


def there_and_back(conn: psycopg.Connection[Any], given: Texts | Times | Uuids) -> Any:
    row = conn.execute("SELECT %s", [given]).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize(
    "items", [[], [""], [None], ["a", None, "b"], ['"{}", \\', "NULL", "\u00e4\U0001f600"]]
)
def test_texts(conn: psycopg.Connection[Any], items: list[str | None]) -> None:
    assert there_and_back(conn, Texts(items)) == items


def test_bytes_are_utf8(conn: psycopg.Connection[Any]) -> None:
    assert there_and_back(conn, Texts(["\u00e4".encode(), b"b"])) == ["\u00e4", "b"]
    for wrong in (b"\xff", b"a\0b"):
        with pytest.raises(psycopg.DataError):
            there_and_back(conn, Texts([wrong]))


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_connection_may_have_another_encoding(conn: psycopg.Connection[Any], encoding: str) -> None:
    conn.execute(f"SET client_encoding = '{encoding}'")

    row = conn.execute(
        "SELECT %s = ARRAY[U&'\\00e4', U&'\\00e4', 'b']", [Texts(["\u00e4", "\u00e4".encode(), b"b"])]
    )
    assert row.fetchone() == (True,)


@pytest.mark.parametrize(
    "items",
    [
        [],
        [None, NOON],
        [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)],
        [NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))],
    ],
)
def test_times(conn: psycopg.Connection[Any], items: list[datetime | None]) -> None:
    conn.execute("SET timezone = 'UTC'")

    assert there_and_back(conn, Times(items)) == items


@pytest.mark.parametrize("count", [0, 1, 3])
def test_uuids(conn: psycopg.Connection[Any], count: int) -> None:
    ids = [uuid4() for _ in range(count)]

    assert there_and_back(conn, Uuids([str(id) for id in ids])) == ids
