"""One event to several destinations: each gets it, a retry goes only where it is missing, order holds everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outspark.database import side_tables
from outspark.database.names import TableName
from outspark.outcome import Dead, Retry
from tests.databases import Database
from tests.integration.relay.harness import Harness, close_harness, open_harness
from tests.waiting import wait_for

NAMES = ("left", "middle", "right")
NO_LUCK = Retry("no luck")


@pytest.fixture(params=["row", "slot"])
def three(request: pytest.FixtureRequest, database: Database) -> Iterator[Harness]:
    """Everything goes to three brokers at once."""
    harness = open_harness(database, *NAMES)
    harness.source["lease"] = request.param
    harness.routes = [{"destination": list(NAMES)}]
    harness.conn.execute(
        side_tables.compose(side_tables.CREATE_DELIVERIES, TableName("openoutbox_events")).encode()
    )
    yield harness
    close_harness(harness)


def remembered(harness: Harness) -> set[tuple[str, int]]:
    rows = harness.conn.execute("SELECT destination, count(*) FROM outspark_deliveries GROUP BY 1").fetchall()
    return set(rows)


def test_each_destination_gets_each_event_once(three: Harness) -> None:
    three.enqueue("a", "b", "c", key="k")
    three.enqueue("d")

    three.work_to_the_end()

    for broker in three.brokers.values():
        assert sorted(broker.published()) == ["a", "b", "c", "d"]
        assert [name for name in broker.delivered() if name in "abc"] == ["a", "b", "c"]
    assert remembered(three) == set()


def test_a_retry_goes_only_where_the_event_is_missing(three: Harness) -> None:
    three.brokers["middle"].answers = {"a": [NO_LUCK, NO_LUCK]}
    three.enqueue("a", "b", key="k")

    three.work_to_the_end()

    assert three.states() == {"a": ("DELIVERED", 2), "b": ("DELIVERED", 0)}
    assert three.brokers["left"].published() == ["a", "b"]
    assert three.brokers["middle"].published() == ["a", "a", "a", "b"]
    assert three.brokers["right"].published() == ["a", "b"]
    assert remembered(three) == set()


def test_what_one_destination_never_takes_is_dead_and_comes_back_only_there(three: Harness) -> None:
    three.brokers["right"].answers = {"a": [Dead("too large")]}
    three.enqueue("a", key="k")
    three.work_to_the_end()

    assert three.states() == {"a": ("DEAD", 1)}
    assert three.error("a") == "right: too large"
    assert remembered(three) == {("left", 1), ("middle", 1)}

    three.set("a", status="PENDING", attempts=0)
    three.work_to_the_end()

    assert three.states() == {"a": ("DELIVERED", 0)}
    assert [len(broker.published()) for broker in three.brokers.values()] == [1, 1, 2]
    assert remembered(three) == set()


def test_what_may_still_pass_elsewhere_is_tried_before_it_is_dead(three: Harness) -> None:
    three.brokers["left"].answers = {"a": [Dead("never"), Dead("never")]}
    three.brokers["middle"].answers = {"a": [NO_LUCK]}
    three.enqueue("a", key="k")

    three.work_to_the_end()

    assert three.states() == {"a": ("DEAD", 2)}
    assert three.brokers["middle"].delivered() == ["a"]


def test_an_outage_of_one_loses_nothing_and_repeats_nothing(three: Harness) -> None:
    broker = three.brokers["middle"]
    broker.down = True
    with three.working() as lane:
        three.enqueue(*(f"{n}" for n in range(20)), key="k")
        three.enqueue(*(f"free {n}" for n in range(20)))
        wait_for(lambda: lane.destinations and lane.destinations["middle"].open)
        three.enqueue("late", key="other")
        broker.down = False
        wait_for(lambda: not three.waiting())

    for name in NAMES:
        assert len(three.brokers[name].delivered()) == 41
        numbers = [int(each) for each in three.brokers[name].delivered() if each.isdigit()]
        assert numbers == list(range(20)), name
    assert {attempts for _, attempts in three.states().values()} == {0}
    assert remembered(three) == set()


def test_it_survives_a_new_owner(three: Harness) -> None:
    """What is remembered is in the database, not in the lane."""
    three.brokers["left"].answers = {"a": [NO_LUCK]}
    three.enqueue("a", key="k")
    three.work(lambda: bool(remembered(three)))
    three.work_to_the_end(three.lane("two"))

    assert [broker.published().count("a") for broker in three.brokers.values()] == [2, 1, 1]


def test_without_its_table_a_lane_says_what_to_do(three: Harness) -> None:
    three.conn.execute("DROP TABLE outspark_deliveries")
    three.enqueue("a")
    lane = three.lane()

    report = three.work(lambda: any(session.problem for session in lane.sessions), lane)

    assert "outspark init --apply" in report.problems[0]
    assert "CREATE TABLE IF NOT EXISTS" in report.problems[0]
    assert [broker.published() for broker in three.brokers.values()] == [[], [], []]
