"""A handler that fails for everything alike is paused, and nothing dies of it; what fails for its own sake does."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import psycopg
import pytest

from outspark.brokers.feed import Received
from outspark.config.settings import Settings
from outspark.contracts.omnibox.inbox import resolve_inbox
from outspark.contracts.omnibox.inbox_guard import paused_types
from outspark.database.names import TableName
from outspark.errors import Reject, RetryLater
from outspark.inbox import InboxEvent, Worker
from outspark.inbox.handling.guard import kind
from outspark.inbox.lane import InboxLane, inbox_lanes
from outspark.observability.metrics import INBOX_PAUSED_COUNT
from outspark.spark.databases import TIMEOUT
from outspark.spark.inbox import InboxApp
from tests.integration.inbox.harness import Harness, message, messages, write
from tests.waiting import wait_for

QUICK = {"probe": "200ms", "longest_probe": "400ms"}
BATCH = 100


class Handler:
    """Fails until it is mended, or for some events only."""

    def __init__(
        self, harness: Harness, topic: str = "orders", error: Callable[[str], Exception] | None = None
    ):
        self.broken = True
        self.calls: list[str] = []
        self.error = error or (lambda id: ValueError(f"column total of order {id} does not exist"))
        self.bad: Callable[[str], bool] = lambda id: self.broken

        @harness.router.on(topic)
        def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
            self.calls.append(event.message_id)
            write(conn, event.message_id)
            if self.bad(event.message_id):
                raise self.error(event.message_id)


def numbered(count: int, **more: Any) -> list[Received]:
    return messages([f"m{n:05}" for n in range(count)], **more)


def worker(harness: Harness, **settings: Any) -> Worker:
    return harness.worker(**{"dead_guard": QUICK, "batch_size": BATCH, **settings})


def work(worker: Worker, until: Callable[[], bool], timeout: float = 30.0) -> None:
    def worked() -> bool:
        if worker.run_once() == 0:
            time.sleep(min(worker.idle_for(), 0.05))
        return until()

    wait_for(worked, timeout=timeout, what="the worker")


def work_for(worker: Worker, seconds: float) -> None:
    end = time.monotonic() + seconds
    work(worker, lambda: time.monotonic() >= end)


def states(harness: Harness) -> dict[tuple[str, int], int]:
    """Status and attempts -> how many events."""
    counts: dict[tuple[str, int], int] = defaultdict(int)
    for state in harness.states().values():
        counts[state] += 1
    return dict(counts)


def paused(harness: Harness) -> list[str]:
    table = resolve_inbox(harness.conn, TableName.parse(harness.table))
    return [one.type for one in paused_types(harness.conn, table, "billing")]


@pytest.mark.parametrize("max_attempts", [1, 6])
@pytest.mark.parametrize("error", [ValueError, Reject])
def test_nothing_dies_of_a_broken_handler(
    either: Harness, error: type[Exception], max_attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Handler(either, error=lambda id: error(f"order {id} has no total"))
    either.accept(*numbered(2000), max_attempts=max_attempts)
    busy = worker(either)

    with caplog.at_level(logging.WARNING, "outspark"):
        work_for(busy, 1.5)

    assert states(either) == {("pending", 0): 2000}
    assert len(handler.calls) <= 2 * BATCH + 10
    assert paused(either) == ["orders"]
    [line] = caplog.records
    assert line.getMessage().startswith("handler is paused, its events fail alike: ")
    said = vars(line)["error"]
    assert "has no total" in said
    assert "2000 events wait" in said
    assert "mend the handler" in said

    handler.broken = False
    work(busy, lambda: not either.waiting())

    assert states(either) == {("completed", 0): 2000}
    assert sorted(either.effects()) == [f"m{n:05}" for n in range(2000)]
    assert paused(either) == []
    assert not busy.guard.pauses


def test_without_the_guard_all_die(harness: Harness) -> None:
    """What the guard is for: the same check, which it would fail."""
    Handler(harness, error=Reject)
    harness.accept(*numbered(500))
    busy = worker(harness, dead_guard={"events": 0})

    work(busy, lambda: not harness.waiting())

    assert states(harness) == {("failed", 6): 500}


def test_order_per_key_holds_through_a_pause(either: Harness) -> None:
    handler = Handler(either)
    sent = [message(f"{n % 50}-{n:04}", key=str(n % 50).encode()) for n in range(1000)]
    either.accept(*sent)
    busy = worker(either, ordering="key")

    work_for(busy, 1.0)
    assert states(either) == {("pending", 0): 1000}

    handler.broken = False
    work(busy, lambda: not either.waiting())

    per_key: dict[str, list[str]] = defaultdict(list)
    for name in either.effects():
        per_key[name.split("-")[0]].append(name)
    assert {key: sorted(names) for key, names in per_key.items()} == per_key
    assert sum(map(len, per_key.values())) == 1000
    assert states(either) == {("completed", 0): 1000}


def test_with_few_keys_in_order_it_takes_several_shifts(harness: Harness) -> None:
    """Only the first event of each key is tried, as often as it may be: it takes a while until 20 have failed."""
    work = {
        "ordering": "key",
        "retry": {"base_delay": "50ms", "max_delay": "50ms", "jitter": 0.0},
        "dead_guard": {"window": "300ms"},
    }
    app = "tests.integration.inbox.handlers:broken"
    inbox = {"url": harness.database.url, "group": "billing", "app": app, "work": work}
    settings = Settings.model_validate({"hosting": {"lanes": 1}, "inboxes": {"bills": inbox}})
    [spec] = inbox_lanes(settings, ["bills"], ["handle"], "run", {})
    harness.accept(*[message(f"{n}", key=f"{n % 3}".encode()) for n in range(1000)], max_attempts=3)

    def shift() -> list[str]:
        ends = time.monotonic() + 0.5
        InboxLane(spec).run(lambda: time.monotonic() >= ends)
        return paused(harness)

    assert wait_for(shift, timeout=60, what="a pause") == ["orders"]
    assert harness.ask("SELECT count(*) FROM inbox_events WHERE status = 'failed'")[0][0] < 20


def test_other_handlers_go_on(harness: Harness) -> None:
    poison, healthy = Handler(harness), Handler(harness, "bills")
    healthy.broken = False
    harness.accept(*numbered(500))
    harness.accept(*messages([f"bill{n}" for n in range(500)], topic="bills"))
    busy = worker(harness)

    work(busy, lambda: len(healthy.calls) == 500)
    harness.accept(*messages([f"later{n}" for n in range(50)], topic="bills"))
    work(busy, lambda: len(healthy.calls) == 550)

    assert states(harness) == {("completed", 0): 550, ("pending", 0): 500}
    poison.broken = False
    work(busy, lambda: not harness.waiting())
    assert states(harness) == {("completed", 0): 1050}


def test_with_order_per_key_others_wait_only_behind_the_paused(harness: Harness) -> None:
    poison, healthy = Handler(harness), Handler(harness, "bills")
    healthy.broken = False
    harness.accept(*[message(f"p{n}", key=f"k{n}".encode()) for n in range(100)])
    harness.accept(*[message(f"behind{n}", key=f"k{n}".encode(), topic="bills") for n in range(100)])
    harness.accept(*[message(f"free{n}", key=f"free{n % 3}".encode(), topic="bills") for n in range(100)])
    harness.accept(*[message(f"none{n}", topic="bills") for n in range(100)])
    harness.accept(*[message(f"paused{n}") for n in range(100)])
    busy = worker(harness, ordering="key")

    work(busy, lambda: len(harness.effects()) == 200)
    work_for(busy, 0.5)
    assert not any(name.startswith(("p", "behind")) for name in harness.effects())
    assert {name for name in healthy.calls if name.startswith("behind")} == set()

    poison.broken = False
    work(busy, lambda: not harness.waiting())
    effects = harness.effects()
    assert len(effects) == 500
    assert all(effects.index(f"p{n}") < effects.index(f"behind{n}") for n in range(100))


def test_a_lock_that_is_lost_lets_nothing_overtake(harness: Harness) -> None:
    poison = Handler(harness)
    harness.accept(*[message(f"p{n}", key=f"k{n}".encode()) for n in range(100)])
    busy = worker(harness, ordering="key", dead_guard={"probe": "1s", "longest_probe": "1s"})
    work(busy, lambda: bool(busy.guard.pauses))
    taken: list[str] = []

    @harness.router.on("bills")
    def bill(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        if not taken:
            taken.append(event.id)
            harness.unlock("first")
        write(conn, event.message_id)

    harness.accept(message("first", key=b"k", topic="bills"), message("second", key=b"k"))
    work(busy, lambda: bool(taken))
    poison.broken = False
    work(busy, lambda: not harness.waiting())

    effects = harness.effects()
    assert len(effects) == 102
    assert effects.index("first") < effects.index("second")


def test_a_poisonous_event_among_others_still_dies(harness: Harness) -> None:
    handler = Handler(harness)
    handler.bad = lambda id: id in {"m00003", "m00050", "m00199"}
    harness.accept(*numbered(200), max_attempts=3)
    busy = worker(harness)

    work(busy, lambda: not harness.waiting())

    assert states(harness) == {("completed", 0): 197, ("failed", 3): 3}


def test_what_fails_in_a_batch_makes_one_line(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    handler = Handler(harness)
    handler.bad = lambda id: id.endswith("0")
    harness.accept(*numbered(BATCH))

    with caplog.at_level(logging.WARNING, "outspark"):
        worker(harness).run_once()

    [line] = caplog.records
    said = vars(line)
    assert (line.getMessage(), said["count"]) == ("handler failed", 10)
    assert said["handler"].endswith("handle")
    assert "does not exist" in said["error"]


def test_a_few_events_that_fail_alone_still_die(harness: Harness) -> None:
    Handler(harness)
    harness.accept(*numbered(10), max_attempts=5)
    busy = worker(harness)

    work(busy, lambda: not harness.waiting())

    assert states(harness) == {("failed", 5): 10}


def test_events_that_fail_each_in_its_own_way_still_die(harness: Harness) -> None:
    words = ("apple", "pear", "plum", "fig", "lime")
    Handler(harness, error=lambda id: Reject(f"bad {words[int(id[1:]) % 5]}"))
    harness.accept(*numbered(100))
    busy = worker(harness)

    work(busy, lambda: not harness.waiting())

    assert states(harness) == {("failed", 6): 100}


def test_many_that_are_put_off_pause_nothing(harness: Harness) -> None:
    handler = Handler(harness, error=lambda id: RetryLater("the bank is closed", after=0.05))
    harness.accept(*numbered(100))
    busy = worker(harness)

    work(busy, lambda: len(handler.calls) > 300)

    assert not busy.guard.pauses


def test_the_next_worker_begins_with_one_event(either: Harness) -> None:
    handler = Handler(either)
    either.accept(*numbered(500))
    first = worker(either)
    work(first, lambda: bool(first.guard.pauses))
    first.close()
    handler.calls.clear()

    second = worker(either, dead_guard={**QUICK, "probe": "1h", "longest_probe": "1h"})
    work_for(second, 0.5)

    assert len(handler.calls) == 1
    assert states(either) == {("pending", 0): 500}
    handler.broken = False
    third = worker(either)
    work(third, lambda: not either.waiting())
    assert states(either) == {("completed", 0): 500}


def test_with_order_the_next_worker_tries_one_soon(either: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shift may end before the time between two looks at the table is over."""
    monkeypatch.setattr("outspark.inbox.handling.guard.SYNC", 60.0)
    handler = Handler(either)
    either.accept(*[message(f"m{n}", key=f"k{n % 50}".encode()) for n in range(500)])
    first = worker(either, ordering="key")
    work(first, lambda: bool(first.guard.pauses))
    first.close()
    handler.broken = False

    second = worker(either, ordering="key", dead_guard={"probe": "1h", "longest_probe": "1h"})
    work(second, lambda: bool(second.guard.pauses), timeout=20)
    work(second, lambda: not either.waiting(), timeout=20)

    assert states(either) == {("completed", 0): 500}


def test_all_workers_go_on_when_one_saw_an_event_pass(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outspark.inbox.handling.guard.SYNC", 0.2)
    handler = Handler(harness)
    harness.accept(*numbered(500))
    slow = worker(harness, dead_guard={"probe": "1h", "longest_probe": "1h"})
    work(slow, lambda: bool(slow.guard.pauses))
    quick = worker(harness)
    work(quick, lambda: bool(quick.guard.pauses))

    handler.broken = False
    work(quick, lambda: not quick.guard.pauses)
    work(slow, lambda: not slow.guard.pauses)

    work(slow, lambda: not harness.waiting())
    assert states(harness) == {("completed", 0): 500}


def test_events_without_a_handler_wait_for_one(harness: Harness) -> None:
    harness.accept(*numbered(300, topic="new"))
    busy = worker(harness)

    work_for(busy, 0.5)

    assert states(harness) == {("pending", 0): 300}
    assert paused(harness) == ["new"]


def test_at_most_once_loses_a_batch_at_most(harness: Harness) -> None:
    handler = Handler(harness)
    harness.accept(*numbered(500))
    first = worker(harness, strategy="at-most-once")
    work(first, lambda: bool(first.guard.pauses))
    lost = len(handler.calls)
    first.close()
    second = worker(harness, strategy="at-most-once", dead_guard={"probe": "1h", "longest_probe": "1h"})
    work_for(second, 0.5)

    assert lost <= BATCH
    assert len(handler.calls) == lost + 1
    handler.broken = False
    third = worker(harness, strategy="at-most-once")
    work(third, lambda: not harness.waiting())
    assert states(harness) == {("completed", 0): 500 - lost - 1, ("failed", 6): lost + 1}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("KeyError: 'total'", "KeyError: 'sum'"),
        ("order 17 is missing", "order 4711 is missing"),
        ("Key (id)=(ada) already exists", "Key (id)=(bob) already exists"),
        ("no 0198c1d2-0000-7000 here", "no a1b2 here"),
    ],
)
def test_errors_of_one_kind(one: str, other: str) -> None:
    assert kind(one) == kind(other)


@pytest.mark.parametrize(
    "errors", [("KeyError: 'total'", "ValueError: 'total'"), ("no such column", "no such table")]
)
def test_errors_of_different_kinds(errors: Sequence[str]) -> None:
    assert len(set(map(kind, errors))) == 2


def test_whoever_asks_is_told(harness: Harness) -> None:
    handler = Handler(harness)
    given = {
        "url": harness.database.url,
        "group": "billing",
        "app": "tests.integration.inbox.handlers:router",
    }
    app = InboxApp(Settings.model_validate({"inboxes": {"bills": given}}), ["bills"], ["handle"])
    harness.accept(*numbered(500))
    busy = worker(harness)
    assert app.ready() == []
    work(busy, lambda: bool(busy.guard.pauses))

    [problem] = app.ready()

    assert problem.startswith("inbox bills: orders of orders is paused since ")
    assert "500 wait: ValueError: column total of order" in problem
    assert "mend the handler" in problem
    [shown] = app.stats()["inboxes"]["bills"]["paused"]
    assert (shown["type"], shown["waiting"]) == ("orders", 500)
    assert app.metrics().value(INBOX_PAUSED_COUNT, inbox="bills") == 1
    assert not app.drained()

    handler.broken = False
    work(busy, lambda: not harness.waiting())
    assert app.ready() == []
    assert app.metrics().value(INBOX_PAUSED_COUNT, inbox="bills") == 0
    assert app.drained()
    app._ended(all_lanes=True)


def test_a_table_that_is_locked_holds_nobody_up_who_asks(harness: Harness) -> None:
    given = {
        "url": harness.database.url,
        "group": "billing",
        "app": "tests.integration.inbox.handlers:router",
    }
    app = InboxApp(Settings.model_validate({"inboxes": {"bills": given}}), ["bills"], ["handle"])
    pool = ThreadPoolExecutor()
    with harness.database.connect() as holder, holder.transaction():
        holder.execute(f"LOCK TABLE {harness.table}")
        asked = pool.submit(app.ready)
        wait({asked}, timeout=4 * TIMEOUT)
        answered = asked.done()
    asked.result()
    pool.shutdown()
    app._ended(all_lanes=True)

    assert answered
