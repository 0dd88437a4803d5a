"""Failed messages, as an operator's script asks for them."""

from __future__ import annotations

from datetime import datetime

import psycopg
import pytest

from outspark.errors import TableInvalid
from outspark.outbox.jeap import FailedMessage, FailedMessages
from tests.integration.outbox.jeap.harness import TABLE, Harness, message

FAIL = f"""
UPDATE {TABLE} SET failed = created - make_interval(hours => (%(n)s - id)::int), fail_reason = 'MESSAGE_TOO_LARGE'
WHERE id = ANY(%(ids)s)"""


@pytest.fixture
def conn(harness: Harness) -> psycopg.Connection:
    return harness.database.connect()


@pytest.fixture
def failed(harness: Harness, conn: psycopg.Connection) -> list[int]:
    """Six messages, an hour apart; the last two did not fail."""
    outbox = harness.outbox(cluster="main")
    with outbox.transaction(conn) as tx:
        ids = tx.send_scheduled(
            *(message(b"x" * n, f"topic {n}", id=f"m{n}", type_version="1.0") for n in range(6))
        )
    conn.execute(FAIL, {"n": ids[-1], "ids": ids[:4]})
    return ids[:4]


def times(harness: Harness) -> list[datetime]:
    return [row.failed for row in harness.rows() if row.failed is not None]


def test_they_are_counted_by_time_and_by_whether_they_are_to_be_sent_again(
    harness: Harness, conn: psycopg.Connection, failed: list[int]
) -> None:
    messages = FailedMessages()
    at = times(harness)
    assert messages.count(conn) == 4
    assert messages.count(conn, since=at[1]) == 3
    assert messages.count(conn, before=at[1]) == 1
    assert messages.count(conn, since=at[1], before=at[3]) == 2
    assert messages.count(conn, resend=True) == 0
    messages.resend(conn, failed[:1])
    assert (messages.count(conn), messages.count(conn, resend=True)) == (3, 1)


def test_ids_are_in_the_order_of_numbers(harness: Harness, conn: psycopg.Connection) -> None:
    with harness.outbox().transaction(conn) as tx:
        ids = tx.send_scheduled(*(message() for _ in range(12)))
    conn.execute(FAIL, {"n": ids[-1], "ids": ids})
    messages, found = FailedMessages(), [0]
    while page := messages.find(conn, after_id=found[-1], limit=5):
        found += [each.id for each in page]
    assert found == [0, *range(1, 13)]


def test_they_are_found_page_by_page_in_the_order_of_their_ids(
    harness: Harness, conn: psycopg.Connection, failed: list[int]
) -> None:
    messages = FailedMessages("public.deferred_message")
    first = messages.find(conn, limit=3)
    rest = messages.find(conn, after_id=first[-1].id, limit=3)
    assert [found.id for found in first + rest] == failed
    assert messages.find(conn, after_id=failed[-1]) == []
    at = times(harness)
    assert [found.id for found in messages.find(conn, since=at[1], before=at[3])] == failed[1:3]

    row = harness.rows()[2]
    assert row.failed is not None
    assert first[2] == FailedMessage(
        id=row.id,
        topic="topic 2",
        message_id="m2",
        idempotence_id="m2",
        type="OrderCreated",
        type_version="1.0",
        cluster="main",
        created=row.created,
        failed=row.failed,
        reason="MESSAGE_TOO_LARGE",
        resend=False,
        size=2,
    )


def test_a_resend_makes_them_ready_again_and_answers_which(
    harness: Harness, conn: psycopg.Connection, failed: list[int]
) -> None:
    messages = FailedMessages()
    before = harness.ready()
    healthy = harness.rows()[-1].id
    assert messages.resend(conn, [failed[1], failed[0], healthy, 10**9]) == failed[:2]
    assert messages.resend(conn, failed[:3]) == failed[2:3]
    assert messages.resend(conn, []) == []
    assert harness.ready() == sorted([*before, *failed[:3]])
    assert [found.id for found in messages.find(conn, resend=True)] == failed[:3]
    assert all(found.resend for found in messages.find(conn, resend=True))


def test_nothing_is_committed(harness: Harness, conn: psycopg.Connection, failed: list[int]) -> None:
    with conn.transaction(force_rollback=True):
        FailedMessages().resend(conn, failed)
    assert FailedMessages().count(conn, resend=True) == 0


def test_a_table_that_is_not_there(conn: psycopg.Connection) -> None:
    with pytest.raises(TableInvalid, match="there is no table nowhere"):
        FailedMessages("nowhere").count(conn)
