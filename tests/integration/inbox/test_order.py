"""Order per key: a key waits for its head, whoever holds it; other keys go on."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from zlib import crc32

import psycopg
import pytest

from outspark.brokers.feed import Received
from outspark.contracts.omnibox.inbox_maintenance import InboxMaintenance
from outspark.database.names import TableName
from outspark.errors import SettingsError
from outspark.inbox import InboxEvent, RetryLater, Worker
from tests.integration.inbox import far_consumer as far_taker_process
from tests.integration.inbox.harness import Harness, message, write
from tests.waiting import wait_for


@pytest.fixture
def ordered(either: Harness) -> Harness:
    either.settings = {"ordering": "key", "slots": 4}
    return either


def keyed(*names: str) -> list[Received]:
    """`x1` has the key `x`."""
    return [message(name, key=name[0].encode()) for name in names]


def per_key(effects: Sequence[str]) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = defaultdict(list)
    for name in effects:
        keys[name[0]].append(name)
    return dict(keys)


def owned(worker: Worker) -> int:
    assert worker._session is not None
    assert worker._session.order is not None
    return len(worker._session.order.owned)


@pytest.mark.parametrize("counted", [True, False])
def test_a_key_waits_for_its_head(ordered: Harness, counted: bool) -> None:
    failures: list[str] = []

    @ordered.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)
        if event.message_id == "x1" and len(failures) < 3:
            failures.append(event.id)
            raise ValueError("later") if counted else RetryLater("later")

    ordered.accept(*keyed("x1", "y1", "x2", "y2", "x3"))
    ordered.work_to_the_end()

    assert ordered.effects() == ["y1", "y2", "x1", "x2", "x3"]
    assert ordered.states()["x2"] == ("completed", 0)


def test_what_a_failure_undoes_of_its_key_is_handled_again_before_it(ordered: Harness) -> None:
    calls: list[str] = []

    @ordered.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        calls.append(event.message_id)
        write(conn, event.message_id)
        if event.message_id == "x2" and calls.count("x2") < 3:
            raise ValueError("later")

    ordered.accept(*keyed("x1", "x2", "x3", "y1"))
    ordered.work_to_the_end()

    assert calls == ["x1", "x2", "x1", "x2", "y1", "x2", "x3"]
    assert per_key(ordered.effects()) == {"x": ["x1", "x2", "x3"], "y": ["y1"]}


def test_a_dead_head_lets_its_key_go_on(ordered: Harness) -> None:
    @ordered.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        if event.message_id == "x1":
            raise ValueError("never")
        write(conn, event.message_id)

    ordered.accept(*keyed("x1", "x2"), max_attempts=2)
    ordered.work_to_the_end()

    assert ordered.effects() == ["x2"]


def test_a_new_worker_knows_what_waits(ordered: Harness) -> None:
    @ordered.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)
        if event.message_id == "x1" and event.attempts == 0:
            raise ValueError("later")

    ordered.accept(*keyed("x1", "x2"))
    first = ordered.worker(retry={"base_delay": "400ms", "jitter": 0})
    first.run_once()
    first.close()
    ordered.accept(*keyed("x3"))

    ordered.work_to_the_end()
    assert ordered.effects() == ["x1", "x2", "x3"]


def test_a_key_in_somebody_elses_hands_waits(ordered: Harness) -> None:
    @ordered.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    ordered.accept(*keyed("x1", "x2", "y1"))
    ordered.lock("x1", "omni-box-worker-1")
    worker = ordered.worker()
    worker.run_once()
    worker.run_once()

    assert ordered.effects() == ["y1"]

    ordered.lock("x1", "omni-box-worker-1", timedelta(minutes=5))
    ordered.work_to_the_end(worker)
    assert ordered.effects() == ["y1", "x1", "x2"]


def test_a_head_that_is_taken_away_still_comes_first(ordered: Harness) -> None:
    """After a failure its place in the queue is behind its key's later events."""
    table = TableName.parse(ordered.table).within("public")
    taken: list[str] = []

    @ordered.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)
        if event.message_id == "x1" and event.attempts == 0:
            raise ValueError("later")
        if event.message_id == "x1" and not taken:
            taken.extend(InboxMaintenance(table).unlock(ordered.conn, [event.id], "it seems to hang"))

    ordered.accept(*keyed("x1", "x2", "x3"))
    ordered.work_to_the_end()

    assert len(taken) == 1
    assert ordered.effects() == ["x1", "x2", "x3"]


def test_a_head_in_the_hands_of_the_slots_last_owner_still_comes_first(ordered: Harness) -> None:
    @ordered.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    ordered.accept(*keyed("x1", "x2"))
    ordered.set("x1", attempts_made=1, scheduled_at=datetime.now(UTC))
    ordered.lock("x1", "the last owner, at its second try")
    worker = ordered.worker()
    worker.run_once()
    ordered.lock("x1", "the last owner, who is gone", timedelta(minutes=5))
    ordered.work_to_the_end(worker)

    assert ordered.effects() == ["x1", "x2"]


def test_what_was_unlocked_comes_before_what_its_worker_left_behind(ordered: Harness) -> None:
    """The one counts no attempt and the other does, but that says nothing about their order."""

    @ordered.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    ordered.accept(*keyed("x1", "x2", "x3"))
    for name in ("x1", "x2"):
        ordered.lock(name, "outspark/inbox/1/vanished/1")
    maintenance = InboxMaintenance(TableName.parse(ordered.table).within("public"))
    maintenance.unlock(ordered.conn, [str(ordered.row("x1")["id"])], "on purpose")
    ordered.work_to_the_end()

    assert ordered.effects() == ["x1", "x2", "x3"]
    assert ordered.states()["x2"] == ("completed", 1)


@contextmanager
def far_consumer(harness: Harness, *, wrong_by: int) -> Iterator[Callable[[str], None]]:
    """Takes in what it is told, in a process of its own with a clock of its own, and is killed at the end."""
    command = [
        sys.executable,
        "-m",
        far_taker_process.__name__,
        harness.database.url,
        harness.table,
        str(wrong_by),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def take(name: str) -> None:
            stdin.write(f"{name}\n")
            stdin.flush()
            assert stdout.readline() == f"{name}\n"

        try:
            yield take
        finally:
            process.kill()


@pytest.mark.parametrize("wrong_by", [(5, 0, 5), (0, -5, 0)])
def test_order_does_not_rest_on_the_clocks_of_those_who_take_in(
    ordered: Harness, wrong_by: tuple[int, ...]
) -> None:
    """Neither at first, nor after a worker has vanished that had all of them."""

    @ordered.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    names = ["x1", "x2", "x3"]
    for name, seconds in zip(names, wrong_by, strict=True):
        with far_consumer(ordered, wrong_by=seconds) as take:
            take(name)
    for name in names:
        ordered.lock(name, "outspark/inbox/1/vanished/1")
    ordered.work_to_the_end()

    assert ordered.effects() == names


def test_many_heads_hold_up_no_other_key(ordered: Harness) -> None:
    @ordered.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        if event.message_id.startswith("bad"):
            raise ValueError("never")
        write(conn, event.message_id)

    ordered.accept(*(message(f"bad{n}", key=f"k{n}".encode()) for n in range(10)), max_attempts=100)
    worker = ordered.worker(retry={"base_delay": "1ms", "max_delay": "1ms", "jitter": 0})
    worker.run_once()
    ordered.accept(*keyed("x1"))
    worker.run_once()
    worker.run_once()

    assert ordered.effects() == ["x1"]


def test_a_broken_group_is_redone_in_order(ordered: Harness) -> None:
    @ordered.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)
        if event.message_id == "x2" and event.attempts == 0:
            conn.execute("ROLLBACK")

    ordered.accept(*keyed("x1", "x2", "x3", "y1"))
    ordered.work_to_the_end()

    assert per_key(ordered.effects()) == {"x": ["x1", "x2", "x3"], "y": ["y1"]}


def test_events_without_a_key_have_no_order_and_hold_up_nobody(ordered: Harness) -> None:
    @ordered.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)
        if event.message_id == "a" and event.attempts == 0:
            raise ValueError("later")

    ordered.accept(message("a"), message("b"))
    ordered.work_to_the_end()

    assert ordered.effects() == ["b", "a"]


def test_workers_share_the_slots_and_keep_the_order(ordered: Harness) -> None:
    @ordered.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)
        if event.attempts == 0 and crc32(event.message_id.encode()) % 10 == 0:
            raise ValueError("later")

    workers = [ordered.worker(name=f"w{n}", batch_size=10) for n in range(2)]

    def shared_out() -> bool:
        for worker in workers:
            worker.run_once()
        return all(owned(worker) == 2 for worker in workers)

    wait_for(shared_out, what="a fair share of the slots")
    names = [f"{key}{number:03}" for number in range(30) for key in "abcdefgh"]
    ordered.accept(*keyed(*names))

    def work(worker: Worker) -> int:
        done = 0
        while ordered_waits():
            done += worker.run_once()
        return done

    def ordered_waits() -> bool:
        with psycopg.connect(ordered.database.url) as conn:
            query = f"SELECT 1 FROM {ordered.table} WHERE status = 'pending' LIMIT 1"
            return conn.execute(query.encode()).fetchone() is not None

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(work, workers))

    assert all(done), "a worker had nothing to do"
    assert per_key(ordered.effects()) == per_key(names)


def test_workers_must_agree_on_the_slots(ordered: Harness) -> None:
    ordered.worker().run_once()

    with pytest.raises(SettingsError, match="another worker has slots = 4"):
        ordered.worker(slots=8).run_once()


def test_a_worker_that_goes_leaves_its_slots_to_the_others(ordered: Harness) -> None:
    @ordered.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    first, second = ordered.worker(name="first"), ordered.worker(name="second")
    first.run_once()
    second.run_once()
    first.close()
    ordered.accept(*keyed(*(f"{key}1" for key in "abcdefgh")))

    def through() -> bool:
        second.run_once()
        return len(ordered.effects()) == 8

    wait_for(through)
