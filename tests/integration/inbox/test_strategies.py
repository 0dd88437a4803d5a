"""What each strategy promises, shown by a process that ends between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from outspark.inbox import InboxEvent, Intake, Received, Strategy
from tests.integration.inbox.harness import Harness, message, messages, write


class Crash(Exception):
    """The process is gone at this point."""


@dataclass
class Log:
    """A broker that is a list: it gives again what was not committed."""

    messages: list[Received]
    committed: int = 0
    given: int = 0
    crash_on_commit: bool = False
    commits: list[int] = field(default_factory=list)

    def poll(self, limit: int, timeout: float) -> Sequence[Received]:
        batch = self.messages[self.given : self.given + limit]
        self.given += len(batch)
        return batch

    def commit(self, messages: Sequence[Received]) -> None:
        if self.crash_on_commit:
            self.crash_on_commit = False
            raise Crash
        self.committed = self.messages.index(messages[-1]) + 1
        self.commits.append(self.committed)

    def commit_soon(self, messages: Sequence[Received]) -> None:
        self.commit(messages)

    def check(self, timeout: float) -> None:
        pass

    def close(self) -> None:
        pass

    def hold(self, timeout: float) -> None:
        pass

    def owns(self, message: Received) -> bool:
        return True

    def restart(self) -> None:
        self.given = self.committed


@pytest.fixture
def counting(either: Harness) -> Harness:
    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    return either


def take_in(harness: Harness, log: Log, strategy: Strategy, **more: Any) -> Intake:
    return Intake(log, harness.acceptor(), strategy, **more)


@pytest.mark.parametrize("strategy", [Strategy.EXACTLY_ONCE, Strategy.AT_LEAST_ONCE_ON_PERSIST])
def test_the_broker_hears_once_the_messages_are_kept(counting: Harness, strategy: Strategy) -> None:
    log = Log(messages("abc"), crash_on_commit=True)
    with pytest.raises(Crash):
        take_in(counting, log, strategy).run_once()
    assert len(counting.states()) == 3

    log.restart()
    take_in(counting, log, strategy).run_once()

    assert log.committed == 3
    counting.work_to_the_end(counting.worker(strategy=strategy))
    assert counting.effects() == ["a", "b", "c"]


def test_at_most_once_tells_the_broker_first(counting: Harness) -> None:
    log = Log(messages("abc"), crash_on_commit=True)
    with pytest.raises(Crash):
        take_in(counting, log, Strategy.AT_MOST_ONCE).run_once()

    assert counting.states() == {}


def test_on_success_tells_the_broker_when_all_is_final(counting: Harness) -> None:
    log = Log(messages("abcd"))
    strategy = Strategy.AT_LEAST_ONCE_ON_SUCCESS
    intake = take_in(counting, log, strategy, batch_size=2, max_open=3)
    worker = counting.worker(strategy=strategy, batch_size=3)

    intake.run_once()
    intake.run_once()
    assert (intake.open, log.commits) == (4, [])

    worker.run_once()
    intake.run_once()
    assert log.commits == [2]

    worker.run_once()
    intake.run_once()
    assert (intake.open, log.commits) == (0, [2, 4])


def test_on_success_takes_in_no_more_than_may_be_open(counting: Harness) -> None:
    log = Log(messages("abcd"))
    intake = take_in(counting, log, Strategy.AT_LEAST_ONCE_ON_SUCCESS, batch_size=2, max_open=2)

    intake.run_once()
    intake.run_once()

    assert log.given == 2


def test_on_success_a_dead_event_is_final_too(counting: Harness) -> None:
    log = Log([message("a", b"no json"), message("b")])
    intake = take_in(counting, log, Strategy.AT_LEAST_ONCE_ON_SUCCESS)
    intake.run_once()

    counting.work_to_the_end(counting.worker(strategy=Strategy.AT_LEAST_ONCE_ON_SUCCESS))
    intake.run_once()

    assert log.commits == [2]


def test_at_most_once_completes_before_the_handler_and_never_tries_again(either: Harness) -> None:
    states: list[Any] = []

    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        states.append(either.states()[event.message_id])
        write(conn, event.message_id)
        if event.message_id == "b":
            raise ValueError("no second try")

    either.accept(*messages("abc"))
    either.work_to_the_end(either.worker(strategy=Strategy.AT_MOST_ONCE))

    assert states == [("completed", 0)] * 3
    assert either.effects() == ["a", "c"]
    assert either.states()["b"] == ("failed", 6)


def test_at_most_once_an_event_that_cannot_be_completed_is_dead_before_its_handler(either: Harness) -> None:
    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)

    either.conn.execute(
        f"ALTER TABLE {either.table} ADD CHECK (NOT (message_id = 'b' AND status = 'completed'))".encode()
    )
    either.accept(*messages("abc"))
    either.work_to_the_end(either.worker(strategy=Strategy.AT_MOST_ONCE))

    assert either.effects() == ["a", "c"]
    assert either.states()["b"] == ("failed", 6)
    assert "CheckViolation" in either.row("b")["last_error"]


def test_at_least_once_lets_a_handler_commit_by_itself(either: Harness) -> None:
    tries: list[str] = []

    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        tries.append(event.message_id)
        write(conn, event.message_id)
        conn.commit()
        if len(tries) == 1:
            raise ValueError("after its own commit")

    either.accept(message("a"))
    either.work_to_the_end(either.worker(strategy=Strategy.AT_LEAST_ONCE_ON_PERSIST))

    assert either.effects() == ["a", "a"]
    assert either.states() == {"a": ("completed", 1)}


def test_at_least_once_rolls_back_a_failure(either: Harness) -> None:
    @either.router.on("orders")
    def handle(event: InboxEvent, conn: psycopg.Connection[Any]) -> None:
        write(conn, event.message_id)
        if event.attempts == 0:
            raise ValueError("once")

    either.accept(message("a"))
    either.work_to_the_end(either.worker(strategy=Strategy.AT_LEAST_ONCE_ON_PERSIST))

    assert either.effects() == ["a"]
