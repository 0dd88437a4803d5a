"""Handlers run in the transaction that completes their event: effects and completion stand or fall together."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from outspark.inbox import InboxEvent, Reject, RetryLater, Worker
from outspark.observability.metrics import INBOX_EVENTS_TOTAL
from tests.integration.inbox.harness import Harness, message, messages, write
from tests.waiting import wait_for

LARGE = b'"%s"' % (b"x" * 100_000)


class Order(BaseModel):
    number: int
    note: str = ""


def test_effects_and_completion_are_committed_together(either: Harness) -> None:
    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    ids = [f"m{n}" for n in range(95)]
    either.accept(*messages(ids))

    assert either.worker().run_once() == 95

    assert either.effects() == ids
    assert set(either.states().values()) == {("completed", 0)}
    row = either.row("m0")
    assert (row["locked_at"], row["locked_by"], row["last_error"]) == (None, None, None)
    assert row["completed_at"] is not None


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_a_claim_ends_after_so_many_bytes(either: Harness, ordering: str) -> None:
    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    ids = [f"m{n}" for n in range(7)]
    either.accept(*messages(ids, key=b"k", body=LARGE))
    worker = either.worker(ordering=ordering, batch_bytes=250_000)

    assert [worker.run_once() for _ in range(4)] == [3, 3, 1, 0]

    assert either.effects() == ids


def test_an_event_larger_than_a_claim_may_be_is_handled(either: Harness) -> None:
    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    either.accept(*messages("ab", body=LARGE))
    worker = either.worker(batch_bytes=1)

    assert [worker.run_once() for _ in range(3)] == [1, 1, 0]


def test_slow_handlers_share_a_transaction_with_few(either: Harness) -> None:
    transactions: list[str] = []

    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        [row] = conn.execute("SELECT pg_current_xact_id()::text").fetchall()
        transactions.append(row[0])
        write(conn, event.message_id)
        time.sleep(0.06)

    ids = [f"m{n}" for n in range(6)]
    either.accept(*messages(ids))

    assert either.worker().run_once() == 6

    assert either.effects() == ids
    assert set(either.states().values()) == {("completed", 0)}
    assert max(Counter(transactions).values()) <= 2


def test_async_handlers_get_an_async_connection(either: Harness) -> None:
    @either.router.on("orders")
    async def handle(event: InboxEvent, conn: psycopg.AsyncConnection[Any]) -> None:
        await conn.execute("INSERT INTO effects (event) VALUES (%s)", [event.message_id])

    either.accept(*messages(["a", "b"]))
    either.work_to_the_end()

    assert either.effects() == ["a", "b"]


def test_sync_and_async_handlers_share_a_batch(harness: Harness) -> None:
    @harness.router.on("sync")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    @harness.router.on("async")
    async def handle_async(event: InboxEvent, conn: psycopg.AsyncConnection[Any]) -> None:
        await conn.execute("INSERT INTO effects (event) VALUES (%s)", [event.message_id])

    names = [f"m{n}" for n in range(10)]
    harness.accept(*(message(name, topic="sync" if n % 3 else "async") for n, name in enumerate(names)))
    harness.work_to_the_end()

    assert harness.effects() == names


def test_a_payload_is_given_as_it_is_or_as_a_model(harness: Harness) -> None:
    seen: list[object] = []

    @harness.router.on("plain")
    def plain(payload: dict[str, Any]) -> None:
        seen.append(payload)

    @harness.router.on("model")
    def model(order: Order) -> None:
        seen.append(order)

    harness.accept(
        message("a", b'{"number": 1}', topic="plain"), message("b", b'{"number": 2}', topic="model")
    )
    harness.work_to_the_end()

    assert seen == [{"number": 1}, Order(number=2)]


def test_a_payload_that_does_not_fit_its_model_is_dead_and_says_why_but_not_what(harness: Harness) -> None:
    @harness.router.on("orders")
    def handle(order: Order) -> None:
        raise AssertionError("never called")

    harness.accept(message("m1", b'{"number": "secret"}'))
    harness.work_to_the_end()

    row = harness.row("m1")
    assert row["status"] == "failed"
    assert "number" in row["last_error"]
    assert "secret" not in row["last_error"]


def test_a_failure_costs_an_attempt_and_leaves_no_effect(either: Harness) -> None:
    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)
        if event.message_id == "b" and event.attempts < 2:
            raise ValueError("not yet")

    either.accept(*messages(["a", "b", "c"]))
    worker = either.worker()
    worker.run_once()

    assert either.effects() == ["a", "c"]
    row = either.row("b")
    assert (row["status"], row["attempts_made"], row["last_error"]) == ("pending", 1, "ValueError: not yet")
    assert row["scheduled_at"] > datetime.now(UTC) - timedelta(seconds=5)

    either.work_to_the_end(worker)
    assert either.effects() == ["a", "c", "b"]
    assert either.states()["b"] == ("completed", 2)


def test_attempts_run_out_by_the_rows_own_limit(harness: Harness) -> None:
    @harness.router.on("orders")
    def handle(event: InboxEvent) -> None:
        raise ValueError("never")

    harness.accept(message("m1"), max_attempts=2)
    harness.work_to_the_end()

    assert harness.states() == {"m1": ("failed", 2)}
    assert harness.row("m1")["last_error"] == "gave up after 2 attempts: ValueError: never"


@pytest.mark.parametrize("counted", [True, False])
def test_a_limit_that_was_lowered_meanwhile_counts(harness: Harness, counted: bool) -> None:
    """Neither claimed nor failed, the event would wait for ever."""

    @harness.router.on("orders")
    def handle(event: InboxEvent) -> None:
        harness.set("m1", max_attempts=1)
        if not counted:
            harness.set("m1", attempts_made=1)
        raise ValueError("later") if counted else RetryLater("later")

    harness.accept(message("m1"))
    harness.worker().run_once()

    assert harness.states() == {"m1": ("failed", 1)}


def test_a_handler_may_say_not_now(harness: Harness) -> None:
    tries: list[str] = []

    @harness.router.on("orders")
    def handle(event: InboxEvent) -> None:
        tries.append(event.id)
        if len(tries) < 9:
            raise RetryLater("the ledger is closed", after=0.01)

    harness.accept(message("m1"), max_attempts=2)
    harness.work_to_the_end()

    assert harness.states() == {"m1": ("completed", 0)}
    assert len(tries) == 9


def test_a_handler_may_reject_for_good(harness: Harness) -> None:
    @harness.router.on("orders")
    def handle(event: InboxEvent) -> None:
        raise Reject("no such customer")

    harness.accept(message("m1"))
    harness.work_to_the_end()

    assert harness.row("m1")["last_error"] == "no such customer"
    assert harness.states() == {"m1": ("failed", 6)}


@pytest.mark.parametrize(("unhandled", "status"), [("dead", "failed"), ("skip", "completed")])
def test_an_event_without_handler(harness: Harness, unhandled: str, status: str) -> None:
    harness.accept(message("m1"))
    harness.work_to_the_end(harness.worker(unhandled=unhandled))

    row = harness.row("m1")
    assert row["status"] == status
    assert "there is no handler for orders from orders" in row["last_error"]


def test_an_event_is_not_handled_before_its_time(harness: Harness) -> None:
    @harness.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    harness.accept(*messages(["now", "later"]))
    harness.set("later", scheduled_at=datetime.now(UTC) + timedelta(hours=1))
    worker = harness.worker()

    assert worker.run_once() == 1
    assert worker.run_once() == 0
    assert harness.effects() == ["now"]
    assert 0 < worker.idle_for() <= 0.5


def test_a_worker_leaves_other_groups_alone(harness: Harness) -> None:
    @harness.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.group)

    harness.accept(message("m1"), group="billing")
    harness.accept(message("m1"), group="shipping")

    assert harness.worker(group="shipping").run_once() == 1
    assert harness.effects() == ["shipping"]


def test_several_workers_handle_each_event_once(either: Harness) -> None:
    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    ids = [f"m{n}" for n in range(600)]
    either.accept(*messages(ids))

    def work(worker: Worker) -> None:
        while either_waits():
            worker.run_once()

    def either_waits() -> bool:
        with psycopg.connect(either.database.url) as conn:
            row = conn.execute(f"SELECT 1 FROM {either.table} WHERE status = 'pending' LIMIT 1".encode())
            return row.fetchone() is not None

    workers = [either.worker(batch_size=25, name=f"w{n}") for n in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, workers))

    assert sorted(either.effects()) == sorted(ids)
    assert either.tally.value(INBOX_EVENTS_TOTAL, status="handled") == 600


def test_run_works_until_it_is_told_to_stop(harness: Harness) -> None:
    @harness.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    stopping = threading.Event()
    thread = threading.Thread(target=harness.worker(poll_interval="20ms").run, args=[stopping])
    thread.start()
    try:
        harness.accept(message("a"))
        wait_for(lambda: harness.effects() == ["a"])
        harness.accept(message("b"))
        wait_for(lambda: harness.effects() == ["a", "b"])
    finally:
        stopping.set()
        thread.join(10)
    assert not thread.is_alive()


def test_who_dies_leaves_a_letter_in_the_same_transaction(harness: Harness) -> None:
    @harness.router.on("orders")
    def handle(event: InboxEvent) -> None:
        raise Reject("broken")

    def letter(conn: psycopg.Connection[Any], event: InboxEvent, error: str) -> None:
        conn.execute("INSERT INTO effects (event, handler) VALUES (%s, %s)", [event.message_id, error])

    harness.accept(message("m1"))
    settings = harness.worker().settings
    with Worker(harness.database.url, harness.table, harness.router, settings, on_dead=letter) as worker:
        worker.run_once()

    assert harness.ask("SELECT event, handler FROM effects") == [("m1", "broken")]


@pytest.mark.parametrize("ordering", ["none", "key"])
@pytest.mark.parametrize("headers", [None, "{}", "[1]", '"text"', '{"partition_key": 7}'])
def test_rows_of_omni_boxes_own_making_are_handled_too(
    harness: Harness, ordering: str, headers: str | None
) -> None:
    @harness.router.on("user.*", source="users")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.payload["name"])

    harness.conn.execute(
        "INSERT INTO inbox_events (id, event_type, message_id, consumer_group, source, payload, headers, scheduled_at) "
        "VALUES (gen_random_uuid(), 'user.created', 'u1', 'billing', 'users', '{\"name\": \"Ada\"}', %s, now())",
        [headers],
    )
    harness.work_to_the_end(harness.worker(ordering=ordering))

    assert harness.effects() == ["Ada"]


def test_a_failure_lets_its_neighbours_run_again_once_and_the_next_one_none(harness: Harness) -> None:
    calls: list[str] = []

    @harness.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        calls.append(event.message_id)
        write(conn, event.message_id)
        if event.message_id in ("bad", "worse"):
            raise ValueError("no")

    worker = harness.worker()
    harness.accept(*messages(["a", "bad", "b"]), max_attempts=1)
    worker.run_once()
    first, calls[:] = [*calls], []
    harness.accept(*messages(["c", "worse", "d"]), max_attempts=1)
    worker.run_once()

    assert first == ["a", "bad", "a", "b"]
    assert calls == ["c", "worse", "d"]
    assert harness.effects() == ["a", "b", "c", "d"]
    assert harness.states()["a"] == ("completed", 0)
    assert harness.states()["bad"] == ("failed", 1)


def test_a_handler_that_fails_in_the_database_is_called_once_an_attempt(harness: Harness) -> None:
    calls: list[str] = []

    @harness.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        calls.append(event.message_id)
        conn.execute("SELECT 1 / %s", [0 if event.message_id == "bad" else 1])
        write(conn, event.message_id)

    harness.accept(*messages(["a", "bad", "b"]))
    harness.worker().run_once()

    assert calls == ["a", "bad", "a", "b"]
    assert harness.effects() == ["a", "b"]
    assert harness.states()["bad"] == ("pending", 1)
