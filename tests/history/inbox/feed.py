"""Stands before a real feed: it writes down what was polled, and what the table says of what is acknowledged.

Between the commit of the database and that of the broker it has accidents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg
from psycopg import sql

from outspark import brokers
from outspark.brokers.feed import Feed, Received
from outspark.config.inbox import FeedSettings
from outspark.errors import FeedFailed
from tests.history.inbox.conduct import Accident, Conduct, die
from tests.history.inbox.drafts import name_of
from tests.history.inbox.journal import Deed, Entry, Journal
from tests.waiting import wait_for

STATES = """\
-- What the inbox knows of these messages, by the names in their bodies
SELECT coalesce(payload ->> 'name', split_part(payload ->> 'raw', ' ', 2)) AS name, status FROM {table}
WHERE consumer_group = %(group)s
  AND coalesce(payload ->> 'name', split_part(payload ->> 'raw', ' ', 2)) = ANY(%(names)s::text[])"""

ACCIDENTS: tuple[Accident, ...] = ("die before commit", "die after commit", "refuse commit")
LONGEST_HOLD = 60.0


class JournalFeed:
    """A `Feed` of one process."""

    def __init__(self, real: Feed, group: str, process: str, conduct: Conduct, luck: random.Random) -> None:
        self._real = real
        self._group = group
        self._process = process
        self._conduct = conduct
        self._journal = Journal(conduct.journal)
        self._luck = luck
        self._polled: list[Received] = []
        # Not called after us, so that a history that cuts our sessions leaves its witness alone.
        self._witness: psycopg.Connection[Any] = psycopg.connect(conduct.url, autocommit=True)

    def poll(self, limit: int, timeout: float) -> Sequence[Received]:
        messages = self._real.poll(limit, timeout)
        self._polled += messages
        self._note("polled", messages)
        return messages

    def hold(self, timeout: float) -> None:
        self._real.hold(timeout)

    def commit(self, messages: Sequence[Received]) -> None:
        self._commit(messages, self._real.commit)

    def commit_soon(self, messages: Sequence[Received]) -> None:
        self._commit(messages, self._real.commit_soon)

    def owns(self, message: Received) -> bool:
        return self._real.owns(message)

    def check(self, timeout: float) -> None:
        self._real.check(timeout)

    def close(self) -> None:
        self._real.close()
        self._witness.close()
        self._journal.close()

    def _commit(self, messages: Sequence[Received], tell: Callable[[Sequence[Received]], None]) -> None:
        hold = self._conduct.hold
        if hold.exists():
            self._note("held", messages)
            wait_for(lambda: not hold.exists(), timeout=LONGEST_HOLD, what="leave to tell the broker")
        accident = self._accident()
        if accident == "die before commit":
            self._die(messages)
        if accident == "refuse commit":
            raise FeedFailed("refused on purpose")
        self._testify(messages)
        tell(messages)
        if accident == "die after commit":
            self._die(messages)

    def _accident(self) -> Accident | None:
        once = self._conduct.once
        if once is not None and self._conduct.is_first(once):
            return once
        return self._luck.choice(ACCIDENTS) if self._luck.random() < self._conduct.accident_rate else None

    def _testify(self, messages: Sequence[Received]) -> None:
        """Write down what the table says of all that this commit speaks for, before the broker hears it."""
        covered = self._covered(messages)
        names = [name_of(message) for message in covered]
        rows = self._witness.execute(
            sql.SQL(STATES).format(table=sql.Identifier(self._conduct.table)),
            {"group": self._group, "names": names},
        ).fetchall()
        states: dict[str, str] = dict(rows)
        self._journal.write(
            [Entry(self._process, self._group, name, "acknowledged", states.get(name, "")) for name in names]
        )

    def _covered(self, messages: Sequence[Received]) -> list[Received]:
        """A partition's offset stands for all before it; of NATS, where `log` is the stream, each counts by itself."""
        ends: dict[tuple[str, int], int] = {}
        for message in messages:
            if message.log is None:
                harness = message.topic, message.partition
                ends[harness] = max(ends.get(harness, 0), message.offset)
        before = [one for one in self._polled if one.offset < ends.get((one.topic, one.partition), 0)]
        self._polled = _without(self._polled, [*messages, *before])
        return _unique([*messages, *before])

    def _note(self, deed: Deed, messages: Sequence[Received]) -> None:
        self._journal.write(
            [Entry(self._process, self._group, name_of(message), deed) for message in messages]
        )

    def _die(self, messages: Sequence[Received]) -> None:
        self._note("died", messages)
        die()


def opener(process: str, conduct: Conduct) -> Any:
    """What is put in the place of `open_feed`, in the process of a lane."""
    # One for all feeds of the process: each of its own would meet the same accident again and again.
    luck = random.Random(f"{conduct.seed}/{process}")

    if conduct.die_on_revoke:
        _die_on_revoke(conduct)

    def open_feed(settings: FeedSettings, group: str, member: str) -> Feed:
        return JournalFeed(brokers.open_feed(settings, group, member), group, process, conduct, luck)

    return open_feed


def _die_on_revoke(conduct: Conduct) -> None:
    from outspark.brokers.kafka.feed import KafkaFeed

    honest = KafkaFeed._on_revoke

    def revoke(self: KafkaFeed, consumer: Any, partitions: Any) -> None:
        if conduct.is_first("revoke"):
            die()
        honest(self, consumer, partitions)

    setattr(KafkaFeed, "_on_revoke", revoke)  # noqa: B010 - another method, of the same type


def _place(message: Received) -> tuple[str, int, int]:
    return message.log or message.topic, message.partition, message.offset


def _without(messages: Iterable[Received], gone: Iterable[Received]) -> list[Received]:
    harnesses = {_place(message) for message in gone}
    return [message for message in messages if _place(message) not in harnesses]


def _unique(messages: Iterable[Received]) -> list[Received]:
    return list({_place(message): message for message in messages}.values())
