"""Two relays that take turns under one ShedLock row, and what proves that they never worked at once.

All times are the database's. A hold is noted after the lock was got and before it is let go, so that the real one is
longer; a publication is noted before and after it happened, so that the real one is shorter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg

from outspark.database.shedlock import RELAY

NOW = "SELECT timezone('utc', clock_timestamp())"

# ShedLock's own protocol, as its provider for PostgreSQL with the server's time speaks it.
INSERT = """
INSERT INTO shedlock (name, lock_until, locked_at, locked_by)
VALUES (%(name)s, timezone('utc', CURRENT_TIMESTAMP) + %(at_most)s, timezone('utc', CURRENT_TIMESTAMP), %(by)s)
ON CONFLICT (name) DO NOTHING"""

UPDATE = """
UPDATE shedlock
SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + %(at_most)s,
    locked_at = timezone('utc', CURRENT_TIMESTAMP), locked_by = %(by)s
WHERE name = %(name)s AND lock_until <= timezone('utc', CURRENT_TIMESTAMP)"""

EXTEND = """
UPDATE shedlock SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + %(at_most)s
WHERE name = %(name)s AND locked_by = %(by)s AND lock_until > timezone('utc', CURRENT_TIMESTAMP)"""

UNLOCK = """
UPDATE shedlock SET lock_until = CASE
  WHEN locked_at + %(at_least)s > timezone('utc', CURRENT_TIMESTAMP) THEN locked_at + %(at_least)s
  ELSE timezone('utc', CURRENT_TIMESTAMP) END
WHERE name = %(name)s AND locked_by = %(by)s"""

RELAY_ONE = """
-- What the Java relay does with one message, without Kafka
UPDATE deferred_message SET sent_scheduled = now(), failed = NULL, resend = false
WHERE id = (SELECT id FROM deferred_message
            WHERE sent_immediately IS NULL AND sent_scheduled IS NULL AND failed IS NULL ORDER BY id LIMIT 1)
RETURNING convert_from(message, 'UTF8')"""


@dataclass(slots=True)
class JavaLock:
    """A Java service's view of the lock; it is called by the name of its host."""

    conn: psycopg.Connection[Any]
    at_most: timedelta = timedelta(seconds=60)
    at_least: timedelta = timedelta(0)
    by: str = "java"

    def acquire(self) -> bool:
        return self._changes(INSERT) or self._changes(UPDATE)

    def extend(self) -> bool:
        return self._changes(EXTEND)

    def release(self) -> None:
        self._changes(UNLOCK)

    def relay_one(self) -> str | None:
        row = self.conn.execute(RELAY_ONE).fetchone()
        return None if row is None else str(row[0])

    def _changes(self, statement: str) -> bool:
        parameters = {"name": RELAY, "by": self.by, "at_most": self.at_most, "at_least": self.at_least}
        return self.conn.execute(statement, parameters).rowcount == 1


@dataclass(frozen=True, slots=True)
class Hold:
    who: str
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Publication:
    who: str
    message: str
    start: datetime
    end: datetime


@dataclass(slots=True)
class Turns:
    """Who held the lock and published when. Whoever had a turn waits until the other has begun one."""

    stop_after: int
    holds: list[Hold] = field(default_factory=list)
    published: list[Publication] = field(default_factory=list)
    refused: int = 0
    """How often somebody asked in vain, which shows that there was a contest."""
    _begun: list[str] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def begin(self, who: str) -> None:
        """Harmless when it has begun already."""
        with self._changed:
            if self._begun[-1:] != [who]:
                self._begun.append(who)
                self._changed.notify_all()

    def over(self) -> bool:
        return len(self._begun) >= self.stop_after

    def await_the_other(self, who: str) -> None:
        with self._changed:
            begun = self._changed.wait_for(lambda: self._begun[-1:] != [who] or self.over(), timeout=20)
            assert begun, f"nobody came after {who}"

    def hand_overs(self) -> int:
        return max(len(self._begun) - 1, 0)


def breaches(turns: Turns) -> list[str]:
    """Every moment at which two held the lock, and every message that went out while somebody else did."""
    holds = sorted(turns.holds, key=lambda hold: hold.start)
    together = [
        f"{other.who} got the lock at {other.start} while {one.who} had it until {one.end}"
        for one, other in pairwise(holds)
        if other.start < one.end
    ]
    outside = [
        f"{each.who} published {each.message} at {each.start} under the lock of {hold.who}"
        for each in turns.published
        for hold in holds
        if hold.who != each.who and each.start < hold.end and each.end > hold.start
    ]
    own = {who: [hold for hold in holds if hold.who == who] for who in {hold.who for hold in holds}}
    without = [
        f"{each.who} published {each.message} at {each.end} without the lock"
        for each in turns.published
        if not any(hold.start <= each.start and each.end <= hold.end for hold in own.get(each.who, []))
    ]
    return together + outside + without


def clock(conn: psycopg.Connection[Any]) -> datetime:
    row = conn.execute(NOW).fetchone()
    assert row is not None
    now: datetime = row[0]
    return now


def lock_until(conn: psycopg.Connection[Any]) -> datetime:
    row = conn.execute("SELECT lock_until FROM shedlock WHERE name = %s", [RELAY]).fetchone()
    assert row is not None
    until: datetime = row[0]
    return until


def side_by_side(*actors: Callable[[], None]) -> None:
    """Run these in threads to their end; what one of them raises is raised here."""
    with ThreadPoolExecutor(len(actors)) as pool:
        for done in as_completed([pool.submit(actor) for actor in actors]):
            done.result()
