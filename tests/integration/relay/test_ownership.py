"""Who owns a slot: locks, epochs, the fence around every settle, and what a new owner finds."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from outspark import contracts
from outspark.contracts.relay_statements import ClaimParams
from outspark.database.arrays import Texts
from outspark.database.names import TableName
from outspark.database.session import Connection, connect
from outspark.database.slots import Owner, Slots
from outspark.delivery.dispatcher import Dispatched
from outspark.errors import OwnershipLost, SettingsError, SlotsTableMissing
from outspark.observability.metrics import LEASES_LOST_TOTAL, Tally
from outspark.outcome import DELIVERED, Retry
from outspark.relay.low_water import BEGINNING
from outspark.relay.ownership import SlotOwnership
from outspark.relay.settle import Settler
from outspark.relay.source import Batch, Source
from tests.integration.relay.harness import Harness
from tests.waiting import wait_for

TABLE = TableName("openoutbox_events", "public")
SLOTS = (0, 1)
ELSEWHERE = Owner("test", "one", 0, "another-host/4026531836", 1)
GONE = Owner("test", "one", 0, Owner.here("", "", 0).host, 2**22 - 1)
HERE = Owner.here("test", "one", 0)
GRACE = 0.3


class OwnerOfSlots:
    """An owner on a connection of its own, as a lane is, but moved by hand."""

    def __init__(self, harness: Harness, owner: Owner = HERE, count: int = 2) -> None:
        settings = harness.settings().sources["outbox"]
        contract = contracts.get("openoutbox")
        statements = contract.relay_statements(TABLE, settings)
        self.conn: Connection = connect(harness.database.url, "owner")
        self.source = Source("outbox", settings, self.conn, statements, contract.maintenance(TABLE), Tally())
        self.slots = Slots(self.conn, TABLE, SLOTS, count, owner)
        self.ownership = SlotOwnership(self.source, self.slots, hold=0.0, grace=GRACE)
        self.settler = Settler(self.source, self.ownership)
        harness.database._open.callback(self.conn.close)

    def take(self) -> bool:
        self.slots.prepare()
        return self.ownership.take()

    def claim(self, token: str = "outspark/test") -> Batch:
        parameters: ClaimParams = {
            "slots": self.ownership.active,
            "blocked": Texts([]),
            "types": [],
            "topics": [],
            "topic_types": [],
            "low": BEGINNING,
            "limit": 100,
            "token": token,
        }
        return self.source.claim(self.source.statements.claim, parameters, token)

    def vanish(self) -> None:
        self.conn.close()

    def steal(self, from_: OwnerOfSlots) -> None:
        """Take the slots although their locks are held, as after a failover that forgot them."""
        from_.conn.execute("SELECT pg_advisory_unlock_all()")
        self.take()


@pytest.fixture
def owner(leased: Harness) -> OwnerOfSlots:
    return OwnerOfSlots(leased)


def test_every_event_has_a_slot_with_and_without_a_key(leased: Harness, owner: OwnerOfSlots) -> None:
    for number in range(20):
        leased.enqueue(f"keyed {number}", key=f"k{number}")
        leased.enqueue(f"free {number}")
    owner.take()

    claimed = {slot: self_claim(owner, slot) for slot in SLOTS}

    assert all(0 < len(names) < 40 for names in claimed.values())
    assert sorted(claimed[0] + claimed[1]) == sorted(leased.states())


def self_claim(owner: OwnerOfSlots, slot: int) -> list[str]:
    owner.ownership.active = [slot]
    return [event.payload.decode() for event in owner.claim().events]


def test_a_slot_has_one_owner(leased: Harness, owner: OwnerOfSlots) -> None:
    second = OwnerOfSlots(leased)

    assert owner.take()
    assert not second.take()
    owner.vanish()
    wait_for(lambda: second.ownership.take() and second.ownership.active == [0, 1])


@pytest.mark.parametrize("outcome", [DELIVERED, Retry("no luck")])
def test_a_settle_with_an_old_epoch_changes_nothing(
    leased: Harness, owner: OwnerOfSlots, outcome: Any
) -> None:
    leased.enqueue("a", "b", key="k")
    owner.take()
    batch = owner.claim()

    OwnerOfSlots(leased, ELSEWHERE).steal(owner)
    after_the_theft = leased.states()

    with pytest.raises(OwnershipLost, match="taken by another owner"):
        owner.settler.settle(batch, Dispatched([outcome, DELIVERED], [None, None], {}))
    with pytest.raises(OwnershipLost):
        owner.ownership.prove()
    assert leased.states() == after_the_theft


def test_a_settle_under_another_token_loses_only_its_leases(harness: Harness) -> None:
    owner = OwnerOfSlots(harness)
    harness.enqueue("a", "b", key="k")
    owner.take()
    batch = owner.claim("outspark/test/1")
    harness.set("a", locked_by="another relay")

    owner.settler.settle(batch, Dispatched([DELIVERED, DELIVERED], [None, None], {}))

    assert harness.states() == {"a": ("DELIVERING", 0), "b": ("DELIVERED", 0)}
    assert owner.source.tally.value(LEASES_LOST_TOTAL, source="outbox") == 1


def test_a_clean_hand_over_needs_no_wait_and_no_adoption(leased: Harness, owner: OwnerOfSlots) -> None:
    leased.enqueue("a", key="k")
    owner.take()
    owner.ownership.leave()
    owner.vanish()

    second = OwnerOfSlots(leased, ELSEWHERE)
    assert wait_for(second.take)

    assert second.ownership.suspects == []


@pytest.mark.parametrize("vanished", [GONE, HERE], ids=["process gone", "this process"])
def test_an_owner_that_ended_for_certain_is_not_waited_for(leased: Harness, vanished: Owner) -> None:
    first = OwnerOfSlots(leased, vanished)
    first.take()
    first.vanish()

    second = OwnerOfSlots(leased, ELSEWHERE)
    assert wait_for(second.take)

    assert second.ownership.active == [0, 1]


def test_an_owner_that_vanished_elsewhere_is_waited_for(leased: Harness) -> None:
    leased.enqueue("a", key="k")
    first = OwnerOfSlots(leased, ELSEWHERE)
    first.take()
    first.claim()
    first.vanish()

    second = OwnerOfSlots(leased)
    second.slots.prepare()
    wait_for(lambda: second.ownership.take() or second.ownership.grace_ends() is not None)
    assert second.ownership.active == []

    # Whoever comes next in the middle of the grace waits, too, and adopts what was in flight.
    second.ownership.leave()
    second.vanish()
    third = OwnerOfSlots(leased)
    third.slots.prepare()
    wait_for(lambda: third.ownership.take() or third.ownership.grace_ends() is not None)
    assert third.ownership.active == []

    wait_for(third.ownership.take)
    assert third.ownership.active == [0, 1]
    assert len(third.ownership.suspects) == 1


def test_what_was_in_flight_is_adopted_and_counted(harness: Harness) -> None:
    harness.enqueue("a", "b", "c", key="k")
    harness.set("c", attempts=2)
    first = OwnerOfSlots(harness)
    first.take()
    first.claim()
    first.vanish()

    second = OwnerOfSlots(harness)
    assert wait_for(second.take)

    assert harness.states() == {"a": ("PENDING", 1), "b": ("PENDING", 1), "c": ("DEAD", 3)}
    assert len(second.ownership.suspects) == 2


def test_leases_of_other_relays_are_not_adopted(harness: Harness) -> None:
    harness.enqueue("a", key="k")
    first = OwnerOfSlots(harness)
    first.take()
    first.claim(token="some other relay")
    first.vanish()

    second = OwnerOfSlots(harness)
    assert wait_for(second.take)

    assert harness.states() == {"a": ("DELIVERING", 0)}


def test_another_number_of_slots_is_refused(leased: Harness, owner: OwnerOfSlots) -> None:
    owner.take()

    with pytest.raises(SettingsError, match=r"slots = 3 for .*works with slots = 2"):
        OwnerOfSlots(leased, count=3).take()


def test_a_role_that_may_not_create_the_table_is_told_the_statement(harness: Harness) -> None:
    harness.conn.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    harness.conn.execute("CREATE ROLE modest_relay LOGIN")
    harness.conn.execute("GRANT SELECT, UPDATE ON openoutbox_events TO modest_relay")
    try:
        with connect(harness.database.url, "modest") as conn:
            conn.execute("SET ROLE modest_relay")
            with pytest.raises(SlotsTableMissing, match="CREATE TABLE IF NOT EXISTS") as error:
                Slots(conn, TABLE, SLOTS, 2, HERE).prepare()
        harness.conn.execute(str(error.value.args[0]).encode())
        with connect(harness.database.url, "modest") as conn:
            harness.conn.execute("GRANT SELECT, INSERT, UPDATE ON outspark_slots TO modest_relay")
            conn.execute("SET ROLE modest_relay")
            Slots(conn, TABLE, SLOTS, 2, HERE).prepare()
    finally:
        harness.conn.execute("DROP OWNED BY modest_relay")
        harness.conn.execute("DROP ROLE modest_relay")


def test_a_lane_reports_the_missing_table_and_goes_on_when_it_is_there(harness: Harness) -> None:
    harness.conn.execute("CREATE TABLE outspark_slots (oops int)")
    harness.enqueue("a", key="k")
    lane = harness.lane()

    def mended() -> bool:
        if lane.sessions and lane.sessions[0].problem:
            harness.conn.execute("DROP TABLE IF EXISTS outspark_slots")
        return not harness.waiting()

    harness.work(mended, lane)

    assert harness.broker.delivered() == ["a"]


def test_lanes_that_start_at_once_make_the_table_of_slots_once(harness: Harness) -> None:
    """Also where one begins between what another looks for and what it makes: often enough that it happens."""
    owners = [OwnerOfSlots(harness) for _ in range(4)]

    def start(owner: OwnerOfSlots) -> None:
        together.wait()
        owner.slots.prepare()

    with ThreadPoolExecutor(len(owners)) as pool:
        for _ in range(40):
            owners[0].conn.execute("DROP TABLE IF EXISTS outspark_slots")
            together = threading.Barrier(len(owners))
            list(pool.map(start, owners))
