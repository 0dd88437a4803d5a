"""Roles that may do what `init --grants` gives them and nothing more: a relay and a writer get by with it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from outspark import contracts
from outspark.contracts.privileges import Need, Who, grants, side_needs
from outspark.database.names import TableName
from outspark.errors import DatabaseRefused
from outspark.hosting import process
from outspark.outbox.new_event import NewEvent
from outspark.outbox.openoutbox import Outbox
from outspark.spark.monitor import Monitor
from tests.integration.relay.harness import Harness
from tests.integration.relay.jeap_harness import JeapHarness
from tests.waiting import wait_for

TABLE = TableName("openoutbox_events", "public")
ROLES = ("modest_relay", "modest_writer")


@pytest.fixture(autouse=True)
def roles(harness: Harness) -> Iterator[None]:
    harness.conn.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    for role in ROLES:
        harness.conn.execute(f"CREATE ROLE {role} LOGIN".encode())
    yield
    for role in ROLES:
        process.discard(url_of(harness, role))
        harness.conn.execute(f"DROP OWNED BY {role}".encode())
        harness.conn.execute(f"DROP ROLE {role}".encode())


def url_of(harness: Harness, role: str) -> str:
    return harness.database.url.replace("postgres@", f"{role}@")


def grant(harness: Harness, contract: str, table: TableName, role: str, who: Who, needs: list[Need]) -> None:
    for need in needs:
        harness.conn.execute(need.create.encode())
    for statement in grants(contracts.get(contract), table, role, who, needs):
        harness.conn.execute(statement.encode())


def monitor(harness: Harness) -> Monitor:
    return Monitor(harness.settings(), "one", "outspark_one")


@pytest.mark.parametrize("lease", ["row", "slot"])
def test_the_grants_are_enough_for_a_relay_and_a_writer(harness: Harness, lease: str) -> None:
    harness.source |= {"url": url_of(harness, "modest_relay"), "lease": lease}
    needs = side_needs(contracts.get("openoutbox"), TABLE, ordered=True, fans_out=True)
    grant(harness, "openoutbox", TABLE, "modest_relay", "relay", needs)
    grant(harness, "openoutbox", TABLE, "modest_writer", "writer", needs)
    with psycopg.connect(url_of(harness, "modest_writer"), autocommit=True) as conn:
        Outbox().enqueue(conn, *(NewEvent("t", f"e{number}", "k") for number in range(20)))

    harness.work_to_the_end()

    assert harness.broker.delivered() == [f"e{number}" for number in range(20)]
    looking = monitor(harness)
    assert looking.problems() == []
    looking.close()


def test_the_grants_are_enough_on_jeap(jeap: JeapHarness) -> None:
    table = TableName("deferred_message", "public")
    jeap.source["url"] = url_of(jeap, "modest_relay")
    needs = side_needs(contracts.get("jeap"), table, ordered=True, fans_out=False)
    grant(jeap, "jeap", table, "modest_relay", "relay", needs)
    grant(jeap, "jeap", table, "modest_writer", "writer", needs)
    jeap.conn.execute("SET ROLE modest_writer")
    jeap.send("a", "b", key=b"k")
    jeap.conn.execute("RESET ROLE")

    jeap.work_to_the_end()

    assert jeap.states() == {"a": "sent", "b": "sent"}


def test_a_relay_that_may_not_make_its_table_is_not_ready_and_says_what_to_run(harness: Harness) -> None:
    harness.source["url"] = url_of(harness, "modest_relay")
    harness.conn.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON openoutbox_events TO modest_relay")
    harness.enqueue("a", key="k")
    looking = monitor(harness)

    (problem,) = looking.problems()
    assert problem.startswith("source outbox: there is no table public.outspark_slots")
    with pytest.raises(DatabaseRefused, match=r"^source 'outbox': there is no table public\.outspark_slots"):
        looking.preflight()
    harness.conn.execute(problem.partition("run: ")[2].encode())

    (problem,) = looking.problems()
    wanted = "source outbox: role modest_relay lacks SELECT, INSERT, UPDATE on public.outspark_slots"
    assert problem.startswith(wanted)
    with harness.working() as lane:
        wait_for(lambda: bool(lane.sessions and lane.sessions[0].problem), what="the lane's problem")
        harness.conn.execute(problem.partition("run: ")[2].encode())
        wait_for(lambda: harness.broker.delivered() == ["a"], what="the event")
    assert list(lane.sessions[0].trouble.found) == ["not allowed; trying again: outbox"]
    assert looking.problems() == []
    looking.close()


def test_a_lane_says_a_remedy_that_can_be_pasted(harness: Harness) -> None:
    harness.source["url"] = url_of(harness, "modest_relay")
    harness.conn.execute("GRANT SELECT, UPDATE ON openoutbox_events TO modest_relay")
    harness.conn.execute("ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT, UPDATE ON TABLES TO modest_relay")
    harness.enqueue("a", key="k")
    with harness.working() as lane:
        wait_for(lambda: bool(lane.sessions and lane.sessions[0].problem), what="the lane's problem")
        _, _, remedy = lane.sessions[0].problem.partition('"none": ')
        harness.conn.execute(remedy.encode())
        wait_for(lambda: harness.broker.delivered() == ["a"], what="the event")


@pytest.mark.parametrize(
    ("revoked", "told"),
    [
        ("UPDATE ON openoutbox_events", "role modest_relay lacks UPDATE on public.openoutbox_events"),
        ("INSERT ON outspark_slots", "role modest_relay lacks INSERT on public.outspark_slots"),
        ("DELETE ON outspark_deliveries", "role modest_relay lacks DELETE on public.outspark_deliveries"),
    ],
)
def test_a_privilege_that_is_revoked_later_is_noticed(harness: Harness, revoked: str, told: str) -> None:
    harness.source["url"] = url_of(harness, "modest_relay")
    harness.brokers["other"] = harness.brokers["broker"]
    harness.routes = [{"destination": ["broker", "other"]}]
    needs = side_needs(contracts.get("openoutbox"), TABLE, ordered=True, fans_out=True)
    grant(harness, "openoutbox", TABLE, "modest_relay", "relay", needs)
    looking = monitor(harness)
    assert looking.problems() == []

    harness.conn.execute(f"REVOKE {revoked} FROM modest_relay".encode())
    (problem,) = looking.problems()
    assert problem.startswith(f"source outbox: {told}; run: GRANT ")

    harness.conn.execute(problem.partition("run: ")[2].encode())
    assert looking.problems() == []
    looking.close()


def test_grants_on_single_columns_count(harness: Harness) -> None:
    harness.source["url"] = url_of(harness, "modest_relay")
    needs = side_needs(contracts.get("openoutbox"), TABLE, ordered=True, fans_out=False)
    grant(harness, "openoutbox", TABLE, "modest_relay", "relay", needs)
    columns = "status, attempts, last_error, available_at, locked_by, locked_at, delivered_at, updated_at"
    harness.conn.execute("REVOKE UPDATE ON openoutbox_events FROM modest_relay")
    harness.conn.execute(f"GRANT UPDATE ({columns}) ON openoutbox_events TO modest_relay".encode())
    harness.enqueue("a", key="k")
    looking = monitor(harness)
    assert looking.problems() == []
    looking.close()
    harness.work_to_the_end()
    assert harness.broker.delivered() == ["a"]
