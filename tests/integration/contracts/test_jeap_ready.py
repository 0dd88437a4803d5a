"""What is ready to be sent, for every state that a message can be in, against an oracle in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product

import psycopg
import pytest
from pydantic import SecretStr

from outspark import contracts
from outspark.config.settings import SourceSettings
from outspark.contracts.jeap.table import DEFAULT_TABLE, ddl, ready_index
from outspark.database.names import TableName, resolve
from tests.databases import Database

HOUR = 3600
SLOTS = 4

INSERT = """
INSERT INTO deferred_message (id, message, key, topic, message_id, message_idempotence_id, message_type_name,
  created, send_immediately, schedule_after, sent_immediately, sent_scheduled, failed, resend)
VALUES (%(id)s, '', %(key)s, 't', %(id)s, %(id)s, 'T', now() - interval '2 hours', %(send_immediately)s,
  now() + make_interval(secs => %(schedule_after)s), now() + make_interval(secs => %(sent_immediately)s),
  now() + make_interval(secs => %(sent_scheduled)s), now() + make_interval(secs => %(failed)s), %(resend)s)"""


@dataclass(frozen=True, slots=True)
class State:
    """Times are seconds from now."""

    send_immediately: bool | None
    schedule_after: int | None
    sent_immediately: int | None
    sent_scheduled: int | None
    failed: int | None
    resend: bool | None

    @property
    def was_sent(self) -> bool:
        return self.sent_immediately is not None or self.sent_scheduled is not None

    @property
    def waits(self) -> bool:
        """It is still somebody's to send: neither sent nor failed, or asked for once more."""
        return bool(self.resend) or not (self.was_sent or self.failed is not None)

    @property
    def is_ready(self) -> bool:
        """Whose sending at once was asked for is ready only past its time, which it has from its sender; what is to be
        sent once more is ready whatever has been."""
        if self.resend:
            return True
        past = self.schedule_after is not None and self.schedule_after < 0
        return self.waits and (not self.send_immediately or past)

    @property
    def is_dead(self) -> bool:
        return self.failed is not None and not self.resend


def every_state() -> Iterator[State]:
    times = [None, -HOUR]
    return (
        State(*values)
        for values in product(
            [True, False, None], [None, -HOUR, HOUR], times, times, times, [True, False, None]
        )
    )


STATES = dict(enumerate(every_state(), start=1))


@pytest.fixture(params=["bare", "with our index"])
def conn(request: pytest.FixtureRequest, database: Database) -> psycopg.Connection:
    conn = database.connect()
    conn.execute(ddl())
    if request.param != "bare":
        conn.execute(ready_index(DEFAULT_TABLE))
        # Only a planner that is forced uses it on a table this small.
        conn.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off")
    with conn.cursor() as cursor:
        cursor.executemany(INSERT, [_row(id, state) for id, state in STATES.items()])
    return conn


def _row(id: int, state: State) -> dict[str, object]:
    # Some share a key, some have none: the slot must not matter.
    key = None if id % 3 == 0 else b"\x00\xff%d" % (id % 7)
    return {"id": id, "key": key, **asdict(state)}


def claim(conn: psycopg.Connection, slots: list[int], blocked: list[str] | None = None) -> list[int]:
    table = resolve(conn, DEFAULT_TABLE)
    settings = SourceSettings(url=SecretStr("postgresql://"), contract="jeap", slots=SLOTS)
    statements = contracts.get("jeap").relay_statements(table, settings)
    parameters = {"slots": slots, "blocked": blocked or [], "types": [], "low": "-infinity", "token": "t"}
    rows = conn.execute(statements.claim.text.encode(), {**parameters, "limit": 1000}).fetchall()
    return [int(event.id) for event in statements.read(rows)]


def test_there_are_as_many_states_as_there_can_be() -> None:
    assert len(STATES) == len(set(STATES.values())) == 3 * 3 * 2 * 2 * 2 * 3


def test_what_is_claimed_is_what_is_ready_in_the_order_of_ids(conn: psycopg.Connection) -> None:
    ready = [id for id, state in STATES.items() if state.is_ready]

    assert claim(conn, list(range(SLOTS))) == ready


def test_each_message_belongs_to_one_slot(conn: psycopg.Connection) -> None:
    shares = [claim(conn, [slot]) for slot in range(SLOTS)]

    assert all(share == sorted(share) for share in shares)
    assert sorted(id for share in shares for id in share) == claim(conn, list(range(SLOTS)))


def test_blocked_keys_are_passed_over(conn: psycopg.Connection) -> None:
    blocked = (b"\x00\xff%d" % 1).hex()

    found = claim(conn, list(range(SLOTS)), [blocked, "/t"])

    assert found == [id for id, state in STATES.items() if state.is_ready and id % 3 != 0 and id % 7 != 1]


def test_time_makes_ready_by_the_databases_clock(conn: psycopg.Connection) -> None:
    """What was not ready only because of its time is ready when that has passed, and nothing else is."""
    before = claim(conn, list(range(SLOTS)))
    conn.execute("UPDATE deferred_message SET schedule_after = schedule_after - interval '2 hours'")

    after = claim(conn, list(range(SLOTS)))

    later = [
        id
        for id, state in STATES.items()
        if state.waits and not state.is_ready and state.schedule_after is not None
    ]
    assert after == sorted(before + later)
    assert later


def test_stats_say_the_same(conn: psycopg.Connection) -> None:
    states = STATES.values()

    stats = contracts.get("jeap").maintenance(resolve(conn, DEFAULT_TABLE)).stats(conn, exact=True)

    assert stats.pending == sum(state.waits for state in states)
    assert stats.pending - stats.scheduled == sum(state.is_ready for state in states)
    assert stats.dead == sum(state.is_dead for state in states)
    assert stats.delivered == sum(state.was_sent and not state.resend for state in states)
    assert stats.delivering == 0


@pytest.mark.parametrize("name", ["orders_outbox", '"Order-Messages"'])
def test_a_table_of_another_name_is_claimed_from_alike(database: Database, name: str) -> None:
    conn = database.connect()
    table = TableName.parse(name)
    conn.execute(ddl())
    conn.execute(ddl(table))
    with conn.cursor() as cursor:
        cursor.executemany(INSERT, [_row(id, state) for id, state in STATES.items()])
    identifier = table.identifier.as_string(conn)
    conn.execute(f"INSERT INTO {identifier} SELECT * FROM deferred_message".encode())
    settings = SourceSettings(url=SecretStr("postgresql://"), contract="jeap", table=name, slots=1)
    statements = contracts.get("jeap").relay_statements(resolve(conn, table), settings)
    parameters = {"slots": [0], "blocked": [], "types": [], "low": "-infinity", "token": "t", "limit": 1000}

    rows = conn.execute(statements.claim.text.encode(), parameters).fetchall()

    assert [int(event.id) for event in statements.read(rows)] == claim(conn, list(range(SLOTS)))
