"""What an intake does with partitions that come and go, and with a batch that the database did not take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from outspark.errors import FeedFailed
from outspark.inbox import Intake, Received, Strategy
from outspark.tools.servers.postgres import Postgres
from tests.databases import Database
from tests.integration.inbox.harness import Harness, message, open_harness

ON_SUCCESS = Strategy.AT_LEAST_ONCE_ON_SUCCESS


@dataclass
class Logs:
    """A broker that is a list a batch, and forgets nothing that it was told."""

    batches: list[list[Received]]
    lost: set[int] = field(default_factory=set)
    """Partitions that are somebody else's."""
    commits: list[list[Received]] = field(default_factory=list)
    holds: int = 0
    polls: int = 0

    def poll(self, limit: int, timeout: float) -> Sequence[Received]:
        self.polls += 1
        return self.batches.pop(0) if self.batches else []

    def hold(self, timeout: float) -> None:
        self.holds += 1

    def commit(self, messages: Sequence[Received]) -> None:
        self.commits.append(list(messages))

    def commit_soon(self, messages: Sequence[Received]) -> None:
        self.commit(messages)

    def owns(self, message: Received) -> bool:
        return message.partition not in self.lost

    def check(self, timeout: float) -> None:
        pass

    def close(self) -> None:
        pass

    def committed(self) -> list[str]:
        return [id_of(message) for batch in self.commits for message in batch]


def id_of(message: Received) -> str:
    [(_, value)] = message.headers
    assert isinstance(value, bytes)
    return value.decode()


def batch(**partitions: int) -> list[Received]:
    """`batch(a=0, b=1)`: message a of partition 0, then b of partition 1."""
    return [message(id, partition=number) for id, number in partitions.items()]


def end(harness: Harness, *ids: str) -> None:
    query = (
        f"UPDATE {harness.table} SET status = 'completed', completed_at = now() WHERE message_id = ANY(%s)"
    )
    harness.conn.execute(query.encode(), [list(ids)])


def test_a_partition_does_not_wait_for_another(harness: Harness) -> None:
    logs = Logs([batch(a=0, b=1), batch(c=1, d=0)])
    intake = Intake(logs, harness.acceptor(), ON_SUCCESS)
    intake.run_once()
    intake.run_once()

    end(harness, "b", "c", "d")
    intake.run_once()

    assert logs.committed() == ["b", "c"]
    assert intake.open == 2
    end(harness, "a")
    intake.run_once()
    assert logs.committed() == ["b", "c", "a", "d"]
    assert intake.open == 0


def test_a_lost_partition_is_neither_waited_for_nor_committed(harness: Harness) -> None:
    logs = Logs([batch(a=0, b=1), batch(c=0), batch(d=1)])
    intake = Intake(logs, harness.acceptor(), ON_SUCCESS, max_open=3)
    for _ in range(3):
        intake.run_once()
    assert (intake.open, logs.polls, logs.holds) == (3, 2, 1)

    logs.lost.add(0)
    intake.run_once()
    assert intake.open == 2
    end(harness, "a", "b", "c", "d")
    intake.run_once()

    assert logs.committed() == ["b", "d"]
    assert intake.open == 0


def test_a_full_intake_still_tells_the_broker_that_it_is_there(harness: Harness) -> None:
    logs = Logs([batch(a=0), batch(b=0)])
    intake = Intake(logs, harness.acceptor(), ON_SUCCESS, max_open=1)
    for _ in range(3):
        intake.run_once()
    assert (logs.polls, logs.holds) == (1, 2)

    end(harness, "a")
    intake.run_once()

    assert (logs.polls, logs.committed()) == (2, ["a"])


@contextmanager
def no_table(harness: Harness) -> Iterator[None]:
    harness.conn.execute(f"ALTER TABLE {harness.table} RENAME TO gone".encode())
    try:
        yield
    finally:
        harness.conn.execute(f"ALTER TABLE gone RENAME TO {harness.table}".encode())


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_batch_that_the_database_did_not_take_is_tried_again(harness: Harness, strategy: Strategy) -> None:
    """The feed would not give it again, and a commit of the next batch would speak for it."""
    logs = Logs([batch(a=0), batch(b=0)])
    intake = Intake(logs, harness.acceptor(), strategy)
    with no_table(harness):
        for _ in range(2):
            with pytest.raises(psycopg.errors.UndefinedTable):
                intake.run_once()
    assert logs.polls == 1

    outcomes: list[Any] = [*intake.run_once(), *intake.run_once()]

    assert len(outcomes) == 2
    assert set(harness.states()) == {"a", "b"}


def flood(*letters: str) -> Logs:
    """Full batches of two, one a word."""
    return Logs([batch(**dict.fromkeys(pair, 0)) for pair in letters])


def test_in_a_flood_the_broker_hears_of_several_batches_at_once(harness: Harness) -> None:
    logs = flood("ab", "cd", "ef", "gh", "ij")
    intake = Intake(logs, harness.acceptor(), batch_size=2)
    for _ in range(3):
        intake.run_once()
    assert logs.committed() == []

    intake.run_once()
    assert logs.committed() == list("abcdefgh")

    # The flood is over, and what is left is told all the same.
    intake.run_once()
    assert logs.committed() == list("abcdefgh")
    intake.run_once()
    assert logs.committed() == list("abcdefghij")


@pytest.mark.parametrize("strategy", [Strategy.AT_MOST_ONCE, ON_SUCCESS])
def test_only_what_is_told_later_may_be_kept_lazily(harness: Harness, strategy: Strategy) -> None:
    """A trigger sees how each transaction will be committed."""
    harness.conn.execute("CREATE TABLE commits (how text)")
    harness.conn.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO commits VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
    )
    harness.conn.execute(
        f"CREATE TRIGGER note AFTER INSERT ON {harness.table} EXECUTE FUNCTION note()".encode()
    )
    for how in (strategy, Strategy.EXACTLY_ONCE):
        intake = Intake(flood("ab" if how is strategy else "cd"), harness.acceptor(), how, batch_size=2)
        intake.run_once()

    assert harness.ask("SELECT how FROM commits") == [("on",), ("off",)]


def test_in_a_flood_the_next_batch_is_polled_meanwhile(harness: Harness) -> None:
    logs = flood("ab", "cd")
    intake = Intake(logs, harness.acceptor(), batch_size=2)
    intake.run_once()
    assert (logs.polls, logs.batches) == (2, [])

    assert len(intake.run_once()) == 2
    assert set(harness.states()) == set("abcd")


def test_without_a_flood_nothing_is_polled_ahead(harness: Harness) -> None:
    logs = flood("ab", "cd")
    Intake(logs, harness.acceptor(), batch_size=3).run_once()

    assert logs.polls == 1


def test_a_poll_ahead_that_fails_takes_nothing_from_the_batch_before(harness: Harness) -> None:
    class Failing(Logs):
        def poll(self, limit: int, timeout: float) -> Sequence[Received]:
            if not self.batches:
                raise FeedFailed("the broker is gone")
            return super().poll(limit, timeout)

    logs = Failing(flood("ab").batches)
    intake = Intake(logs, harness.acceptor(), batch_size=2)
    assert len(intake.run_once()) == 2

    with pytest.raises(FeedFailed, match="gone"):
        intake.run_once()
    assert set(harness.states()) == {"a", "b"}


def test_what_a_crash_of_the_server_takes_back_was_never_told() -> None:
    # Long enough that nothing gets to the disk by itself.
    forgetful = Postgres(options={"wal_writer_delay": "10s"})
    with forgetful as server, closing(Database(server.url())) as database:
        harness = open_harness(database)
        logs = flood("ab", "cd", "ef", "gh", "ij", "kl")
        intake = Intake(logs, harness.acceptor(), batch_size=2)
        for _ in range(6):
            intake.run_once()

        server.stop(immediate=True)
        server.start()

        with pytest.raises(psycopg.OperationalError):
            intake.run_once()
        kept = database.connect().execute(f"SELECT message_id FROM {harness.table}".encode()).fetchall()
        assert sorted(id for (id,) in kept) == list("abcdefgh") == logs.committed()


def test_duplicates_of_what_is_not_on_disk_are_told_only_once_it_is() -> None:
    """A partition changes hands while its first owner has kept messages lazily and told nobody."""
    forgetful = Postgres(options={"wal_writer_delay": "10s"})
    with forgetful as server, closing(Database(server.url())) as database:
        harness = open_harness(database)
        first, second = flood("ab"), flood("ab")
        Intake(first, harness.acceptor(), batch_size=2).run_once()
        Intake(second, harness.acceptor(), batch_size=3).run_once()
        assert (first.committed(), second.committed()) == ([], ["a", "b"])

        server.stop(immediate=True)
        server.start()

        kept = database.connect().execute(f"SELECT message_id FROM {harness.table}".encode()).fetchall()
        assert sorted(id for (id,) in kept) == ["a", "b"]
