"""The low-water mark: it must never let a claim pass over an event that was committed late but written early."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import psycopg
import pytest
from pydantic import SecretStr

from outspark import NewEvent, Outbox, contracts
from outspark.config.settings import SourceSettings
from outspark.contracts.openoutbox import table as openoutbox
from outspark.contracts.relay_statements import ClaimParams
from outspark.database.arrays import Texts
from outspark.database.names import TableName
from outspark.database.session import Connection, connect
from outspark.delivery.destination import Block
from outspark.observability.metrics import Tally
from outspark.relay import low_water
from outspark.relay.handover import DestinationBacklog, LowWaterMark
from outspark.relay.low_water import BEGINNING, LowWater
from outspark.relay.source import Source
from tests.databases import Database

TABLE = TableName("openoutbox_events", "public")
LIMIT = 5
PAGES = 15
"""Of the index alone, for what these tests drain."""


def claim_params(low: datetime, limit: int) -> ClaimParams:
    return {
        "slots": [0],
        "blocked": Texts([]),
        "types": [],
        "topics": [],
        "topic_types": [],
        "low": low,
        "limit": limit,
        "token": "",
    }


class Drain:
    """Looks as a lane does, and takes every event it sees for delivered."""

    def __init__(self, conn: Connection, url: str, *, wait_for_open: bool = True) -> None:
        settings = SourceSettings(url=SecretStr(url), lease="slot", slots=1, batch_size=LIMIT)
        contract = contracts.get("openoutbox")
        statements = contract.relay_statements(TABLE, settings)
        self.conn = conn
        self.source = Source("test", settings, conn, statements, contract.maintenance(TABLE), Tally())
        self.low = LowWater(self.source, wait_for_open=wait_for_open, margin=0.0)
        self.looks: list[datetime] = []
        self.ends: list[datetime] = []

    def look(self, *, delivered: bool = True) -> list[str]:
        low = self.low.begin()
        self.looks.append(low)
        parameters = claim_params(low, LIMIT)
        events = self.source.claim(self.source.statements.claim, parameters, "").events
        self.low.claimed(events, full=len(events) == LIMIT)
        ids = [event.id for event in events]
        if not delivered:
            return ids
        self.conn.execute("UPDATE openoutbox_events SET status = 'DELIVERED' WHERE event_id = ANY(%s)", [ids])
        if events:
            self.low.settled_up_to(events[-1].created_at)
            self.ends.append(events[-1].created_at)
        return ids

    def look_until_marked(self) -> None:
        while self.look() and not self.has_mark():
            pass

    def hand_over(self) -> None:
        """The next shift goes on from the note of this one."""
        mark = self.low.note()
        self.low = LowWater(self.source, wait_for_open=self.low.wait_for_open)
        self.low.prepare()
        if mark is not None:
            self.low.resume(LowWaterMark.model_validate_json(mark.model_dump_json()), ago=0.0)

    def pages_from_beginning(self) -> int:
        """How many pages, of index and table, a look from the beginning reads for a single event."""
        parameters = claim_params(BEGINNING, 1)
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {self.source.statements.claim.text}"
        (((plan,),),) = self.conn.execute(explain, parameters).fetchall()
        return int(plan["Plan"]["Shared Hit Blocks"]) + int(plan["Plan"]["Shared Read Blocks"])

    def has_mark(self) -> bool:
        return self.looks[-1] != BEGINNING


@pytest.fixture
def lane(database: Database) -> Iterator[Connection]:
    conn = connect(database.url, "lane")
    with conn:
        for statement in openoutbox.statements(TABLE):
            conn.execute(statement.encode())
        yield conn


def fill(conn: psycopg.Connection[tuple[object, ...]], events: int) -> None:
    Outbox().enqueue(conn, *(NewEvent("t", {"n": n}, key=f"k{n % 3}") for n in range(events)))


def schedule(conn: Connection, milliseconds: int) -> None:
    """An event that falls due so much later."""
    conn.execute(
        "INSERT INTO openoutbox_events (event_id, event_type, payload, available_at) "
        "VALUES (gen_random_uuid(), 't', '', clock_timestamp() + %s * interval '1 ms')",
        [milliseconds],
    )


def late_event(drain: Drain, database: Database, *, shifts: bool = False) -> tuple[list[str], str, str]:
    """Write A early and commit it late, in the middle of a drain, then write B of the same key; drain it all."""

    def look() -> list[str]:
        if shifts:
            drain.hand_over()
        return drain.look()

    outbox = Outbox()
    with psycopg.connect(database.url) as late:
        (first,) = outbox.enqueue(late, NewEvent("t", {}, key="late"))
        fill(drain.conn, 60)
        order = [event for _ in range(6) for event in look()]
        late.commit()
    (second,) = outbox.enqueue(drain.conn, NewEvent("t", {}, key="late"))
    while batch := look():
        order.extend(batch)
    return order, str(first), str(second)


@pytest.mark.parametrize("dear", [1e6, 0.0], ids=["looks are cheap", "looks are dear"])
def test_an_event_committed_late_is_still_claimed_before_the_next_of_its_key(
    lane: Connection, database: Database, monkeypatch: pytest.MonkeyPatch, dear: float
) -> None:
    monkeypatch.setattr(low_water, "EXPENSIVE", dear)
    order, first, second = late_event(Drain(lane, database.url), database)
    assert len(order) == 62
    assert order.index(first) < order.index(second)


def test_the_same_with_a_hand_over_before_each_look(lane: Connection, database: Database) -> None:
    drain = Drain(lane, database.url)
    order, first, second = late_event(drain, database, shifts=True)
    assert len(order) == 62
    assert order.index(first) < order.index(second)
    assert any(look != BEGINNING for look in drain.looks)


def test_without_waiting_for_open_transactions_order_breaks(lane: Connection, database: Database) -> None:
    order, first, second = late_event(Drain(lane, database.url, wait_for_open=False), database)
    assert order.index(second) < order.index(first)


def test_a_drain_gets_a_mark_once_nothing_older_is_open(lane: Connection, database: Database) -> None:
    drain = Drain(lane, database.url)
    fill(lane, 60)
    drain.look_until_marked()
    assert drain.has_mark()


def test_looks_from_the_mark_raise_it(lane: Connection, database: Database) -> None:
    drain = Drain(lane, database.url)
    fill(lane, 100)
    drain.look_until_marked()
    for _ in range(3):
        assert len(drain.look()) == LIMIT
    marks = drain.looks[-4:]
    assert marks == sorted(set(marks))


def test_once_all_of_a_look_is_through_the_next_begins_at_its_end(
    lane: Connection, database: Database
) -> None:
    drain = Drain(lane, database.url)
    fill(lane, 100)
    drain.look_until_marked()
    for _ in range(3):
        assert len(drain.look()) == LIMIT
        assert drain.looks[-1] == drain.ends[-2]


@pytest.mark.parametrize(("interval", "reads_rows"), [(0.0, False), (1e6, True)], ids=["swept", "not swept"])
def test_what_was_swept_costs_a_look_from_the_beginning_no_rows(
    lane: Connection, database: Database, monkeypatch: pytest.MonkeyPatch, interval: float, reads_rows: bool
) -> None:
    """The index entries of events that are done are marked as dead while looks still come by."""
    monkeypatch.setattr(low_water, "CHECK_INTERVAL", interval)
    lane.execute("ALTER TABLE openoutbox_events SET (autovacuum_enabled = off)")
    drain = Drain(lane, database.url)
    fill(lane, 400 * LIMIT)
    drain.look_until_marked()
    for _ in range(300):
        assert len(drain.look()) == LIMIT
    assert (drain.pages_from_beginning() > PAGES) is reads_rows


@pytest.mark.parametrize("waits", [False, True], ids=["nothing waits", "much waits"])
def test_what_waits_for_a_destination_is_not_swept(
    lane: Connection, database: Database, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """It would be read again, second by second."""
    monkeypatch.setattr(low_water, "CHECK_INTERVAL", 0.0)
    drain = Drain(lane, database.url)
    if waits:
        backlog = DestinationBacklog(
            destination="bus",
            since=0.0,
            reason="down",
            probe_in=0.0,
            pause=0.0,
            keys=["of another"],
            types=[],
        )
        drain.source.keys.inherited(Block("bus"), backlog)
    fill(lane, 100)
    drain.look_until_marked()
    for _ in range(3):
        assert len(drain.look()) == LIMIT
        assert (drain.looks[-1] == drain.ends[-2]) is waits


def test_what_a_sweep_finds_below_the_mark_and_is_not_through_is_found_again(
    lane: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_water, "CHECK_INTERVAL", 0.0)
    drain = Drain(lane, database.url)
    fill(lane, 100)
    drain.look_until_marked()
    for _ in range(3):
        drain.look()
    (event,) = Outbox().enqueue(lane, NewEvent("t", {}, key="k0"))
    earlier = drain.ends[-2]
    lane.execute("UPDATE openoutbox_events SET created_at = %s WHERE event_id = %s", [earlier, event])
    for _ in range(3):
        assert str(event) in drain.look(delivered=False)


def test_a_mark_lasts_longer_where_a_look_from_the_beginning_is_dear(
    lane: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lane, 100)
    lasting = []
    for worth in (0.0, 1e6):
        monkeypatch.setattr(low_water, "BUSY", (worth, 1.0, 30.0))
        drain = Drain(lane, database.url)
        drain.look_until_marked()
        lasting.append(drain.low.expires_in())
    assert 0 < lasting[0] <= 1.0 < lasting[1] <= 30.0


def test_where_looks_are_dear_the_mark_stays_when_nothing_is_left(
    lane: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for a destination that is down need not be stepped over at each look of an idle lane."""
    fill(lane, 12)
    for dear, stays in ((1e6, False), (0.0, True)):
        monkeypatch.setattr(low_water, "EXPENSIVE", dear)
        drain = Drain(lane, database.url)
        for _ in range(6):
            drain.look()
        assert drain.has_mark() is stays
        assert drain.low.saw_the_end
        fill(lane, 3)
        assert len(drain.look()) == 3
        assert drain.low.saw_the_end


def test_an_open_transaction_keeps_the_mark_away(lane: Connection, database: Database) -> None:
    drain = Drain(lane, database.url)
    fill(lane, 60)
    with psycopg.connect(database.url) as other:
        other.execute("SELECT 1")
        for _ in range(8):
            drain.look()
            assert not drain.has_mark()


def test_a_key_set_free_ends_the_mark(lane: Connection, database: Database) -> None:
    drain = Drain(lane, database.url)
    fill(lane, 60)
    drain.look_until_marked()
    drain.source.keys.breaker_closed(Block("bus"))
    drain.look()
    assert not drain.has_mark()


def test_a_scheduled_event_is_found_when_it_falls_due(lane: Connection, database: Database) -> None:
    """The mark ends when the next scheduled event falls due, so that it joins its key's order in time."""
    drain = Drain(lane, database.url)
    schedule(lane, milliseconds=300)
    fill(lane, 60)
    drain.look_until_marked()
    assert 0 < drain.low.expires_in() <= 0.3


def test_while_looks_begin_at_the_mark_it_rises_with_time(
    lane: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream without end does not look over the same index entries until the mark expires."""
    monkeypatch.setattr(low_water, "CHECK_INTERVAL", 0.0)
    drain = Drain(lane, database.url)
    fill(lane, 60)
    drain.look_until_marked()
    ((later,),) = lane.execute("SELECT clock_timestamp()").fetchall()
    for _ in range(20):
        fill(lane, LIMIT)
        drain.look()
    assert drain.looks[-1] > later


def test_an_event_scheduled_after_the_mark_was_set_is_found_when_it_falls_due(
    lane: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark may rise past it while it waits."""
    monkeypatch.setattr(low_water, "CHECK_INTERVAL", 0.0)
    drain = Drain(lane, database.url)
    fill(lane, 60)
    drain.look_until_marked()
    schedule(lane, milliseconds=300)
    for _ in range(3):
        fill(lane, 2 * LIMIT)
        drain.look()
    assert 0 < drain.low.expires_in() <= 0.3


def test_what_falls_due_between_two_shifts_ends_the_mark(lane: Connection, database: Database) -> None:
    drain = Drain(lane, database.url)
    schedule(lane, milliseconds=100)
    fill(lane, 60)
    drain.look_until_marked()
    mark = drain.low.note()
    assert mark is not None
    drain.low.resume(mark, ago=0.2)
    assert drain.low.expires_in() == 0.0


def test_what_a_transaction_wrote_before_it_showed_is_above_the_mark(
    lane: Connection, database: Database
) -> None:
    """It takes its time first; until it shows among the open ones, its process may wait for a processor."""
    low = LowWater(Drain(lane, database.url).source)
    row = lane.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    low.prepare()
    assert low._asked is not None
    assert low._asked < row[0]
