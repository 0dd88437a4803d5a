"""A little order service: it changes an order and writes what happened into the outbox, in one transaction.

Several writers work on the same orders at once. A transaction locks its order first, makes one to three steps
with an event each, and is rolled back now and then.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

import psycopg

from outspark.outbox.openoutbox import NewEvent, Outbox
from outspark.tools.demo.proof import Fact

STEPS = ("order.placed", "order.paid", "order.packed", "order.shipped", "order.delivered")
ROLLBACKS = 0.1
"""Share of the transactions that are rolled back."""

CREATE = (
    """\
-- An order; `version` counts its events
CREATE TABLE orders (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state text NOT NULL,
    version integer NOT NULL
)""",
    """\
-- The shop's own record of what happened to an order, against which the demo checks the relay
CREATE TABLE order_history (
    event_id uuid PRIMARY KEY,
    number bigint NOT NULL REFERENCES orders,
    version integer NOT NULL,
    UNIQUE (number, version)
)""",
)

OPEN = """\
-- A new order, invisible to others before the commit
INSERT INTO orders (state, version) VALUES ('new', 0) RETURNING number, version"""

LOCK = """\
-- A transaction that changes an order locks it first, so that its events commit in the order in which they are made
SELECT number, version FROM orders WHERE number = %(number)s FOR UPDATE"""

ADVANCE = """\
-- Move the order to its next step
UPDATE orders SET state = %(state)s, version = %(version)s WHERE number = %(number)s"""

RECORD = """\
-- What happened, in the shop's own words
INSERT INTO order_history (event_id, number, version)
SELECT id, %(number)s, version FROM unnest(%(ids)s::uuid[], %(versions)s::int[]) AS step(id, version)"""

HISTORY = """\
-- Everything that was committed
SELECT event_id::text, number::text, version FROM order_history ORDER BY number, version"""


class Shop:
    """Open from `start` to `close`. Counts are those of events, and may be read at any time."""

    writers = 4
    open_orders = 40
    """Orders that are worked on at the same time."""

    def __init__(self, url: str, *, rate: float, seconds: float) -> None:
        self._url = url
        self._rate = rate
        self._seconds = seconds
        self._outbox = Outbox()
        self._open: list[int] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(self.writers, thread_name_prefix="shop")
        self._work: list[Future[None]] = []
        self.committed_at: dict[str, float] = {}
        """When the commit of each event began, by `time.time`."""
        self.rolled_back: list[str] = []

    def start(self) -> None:
        self._work = [self._pool.submit(self._write) for _ in range(self.writers)]

    @property
    def at_work(self) -> bool:
        """Raises what ended a writer."""
        for done in wait(self._work, timeout=0).done:
            done.result()
        return any(not work.done() for work in self._work)

    def close(self) -> None:
        self._closing.set()
        self._pool.shutdown(cancel_futures=True)

    def _write(self) -> None:
        dice = random.Random()
        start = time.monotonic()
        due = 0.0
        with psycopg.connect(self._url, application_name="shop") as conn:
            while due < self._seconds and not self._closing.wait(max(start + due - time.monotonic(), 0)):
                due += self._serve(conn, dice) * self.writers / self._rate
                # A machine that cannot keep up writes as fast as it can, and still ends in time.
                due = max(due, time.monotonic() - start - 1.0)

    def _serve(self, conn: psycopg.Connection, dice: random.Random) -> int:
        """One transaction; how many events it made."""
        chosen = self._choose(dice)
        committing: float | None = None
        with conn.transaction():
            number, version = _order(conn, chosen)
            events = self._advance(conn, number, version, dice.choice((1, 1, 2, 3)))
            if dice.random() < ROLLBACKS:
                raise psycopg.Rollback
            committing = time.time()
        ids = [str(event.id) for event in events]
        if committing is None:
            self.rolled_back.extend(ids)
        else:
            self.committed_at.update(dict.fromkeys(ids, committing))
            self._remember(number, is_new=chosen is None, is_done=version + len(events) == len(STEPS))
        return len(ids)

    def _advance(self, conn: psycopg.Connection, number: int, version: int, count: int) -> list[NewEvent]:
        """The order's next steps and their events; none when another writer has finished it meanwhile."""
        steps = list(enumerate(STEPS, 1))[version : version + count]
        if not steps:
            return []
        key = str(number)
        # Where all types share a topic, the topic does not tell them apart, so a header says it too.
        events = [
            NewEvent(step, {"order": number, "version": at}, key=key, headers={"event_type": step})
            for at, step in steps
        ]
        version, state = steps[-1]
        conn.execute(ADVANCE, {"number": number, "state": state, "version": version})
        versions = [at for at, _ in steps]
        conn.execute(RECORD, {"number": number, "ids": [event.id for event in events], "versions": versions})
        self._outbox.enqueue(conn, *events)
        return events

    def _choose(self, dice: random.Random) -> int | None:
        """An order to work on; None for a new one."""
        with self._lock:
            return dice.choice(self._open) if len(self._open) >= self.open_orders else None

    def _remember(self, number: int, *, is_new: bool, is_done: bool) -> None:
        with self._lock:
            if is_new and not is_done:
                self._open.append(number)
            elif is_done and number in self._open:
                self._open.remove(number)


def create_tables(conn: psycopg.Connection) -> None:
    for statement in CREATE:
        conn.execute(statement.encode())


def history(conn: psycopg.Connection) -> list[Fact]:
    """What the shop's own tables say was committed."""
    return [Fact(id, key, number) for id, key, number in conn.execute(HISTORY)]


def _order(conn: psycopg.Connection, number: int | None) -> tuple[int, int]:
    row = conn.execute(OPEN if number is None else LOCK, {"number": number}).fetchone()
    assert row is not None
    return row[0], row[1]
