"""A destination that is down: nobody pays for it with attempts, and everything goes on when it is back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from outspark.contracts.openoutbox.table import ddl
from outspark.database.names import TableName
from outspark.delivery.destination import Destination
from outspark.errors import DestinationDown
from outspark.event import Message
from outspark.outcome import DELIVERED, HELD, Retry
from tests.databases import Database
from tests.integration.relay.harness import Broker, Harness, close_harness, open_harness
from tests.waiting import wait_for


@pytest.fixture(params=["row", "slot"])
def two(request: pytest.FixtureRequest, database: Database) -> Iterator[Harness]:
    """Events of type `left.*` and `right.*` go to brokers of these names."""
    harness = open_harness(database, "left", "right")
    harness.source["lease"] = request.param
    harness.routes = [{"match": f"{name}.*", "destination": name} for name in ("left", "right")]
    yield harness
    close_harness(harness)


def test_an_outage_burns_no_attempts(leased: Harness) -> None:
    leased.broker.down = True
    leased.enqueue("a", "b", key="k")
    leased.enqueue("c")

    with leased.working() as lane:
        wait_for(lambda: lane.destinations and lane.destinations["broker"].open)
        tried = len(leased.broker.batches)
        leased.enqueue("d", key="other")
        leased.broker.down = False
        wait_for(lambda: not leased.waiting())

    assert leased.states() == dict.fromkeys("abcd", ("DELIVERED", 0))
    assert leased.broker.published()[:tried].count("a") <= 1
    assert [name for name in leased.broker.delivered() if name in "ab"] == ["a", "b"]


def test_a_destination_that_is_down_is_only_probed(leased: Harness) -> None:
    leased.broker.down = True
    leased.enqueue("a", key="k")

    def probed_twice() -> bool:
        (destination,) = (lane.destinations or {}).values()
        return destination.pause > 0.7

    lane = leased.lane()
    report = leased.work(probed_twice, lane)

    assert leased.broker.published() == ["a"]
    assert report.breakers == {"broker": "nobody answers"}
    assert leased.states() == {"a": ("PENDING", 0)}


def test_a_probe_that_takes_long_is_made_rarely() -> None:
    """The lane waits for each of them, and so do all its other destinations."""

    class Silent(Broker):
        def check(self, timeout: float) -> None:
            time.sleep(0.05)
            raise DestinationDown("nobody answers")

    destination = Destination("silent", Silent(), timeout=1.0)
    destination.presume_down("nobody answers", probe_in=0.0, pause=0.1)
    destination.probe()
    next_probe = destination.next_probe()
    assert next_probe is not None
    assert next_probe - time.monotonic() > 0.9


def test_the_others_go_on_when_one_of_two_is_down(two: Harness) -> None:
    two.brokers["left"].down = True
    two.enqueue("l1", type="left.t", key="both")
    two.enqueue("r1", type="right.t", key="both")
    two.enqueue("r2", "r3", type="right.t", key="right only")
    two.enqueue("l2", type="left.t")
    two.enqueue("r4", type="right.t")

    with two.working():
        wait_for(lambda: two.waiting() == 3)
        assert sorted(two.brokers["right"].delivered()) == ["r2", "r3", "r4"]
        assert two.states()["r1"] == ("PENDING", 0)
        two.brokers["left"].down = False
        wait_for(lambda: not two.waiting())

    assert sorted(two.brokers["left"].delivered()) == ["l1", "l2"]
    assert two.brokers["right"].delivered()[-1] == "r1"
    assert set(two.states().values()) == {("DELIVERED", 0)}


def test_every_source_hears_that_a_destination_is_back(harness: Harness) -> None:
    """Each source has its own list of what waits, while the breaker is shared."""
    harness.conn.execute(ddl(TableName("second")))
    harness.more_sources["second"] = {"table": "second"}
    harness.broker.down = True
    harness.enqueue("a", key="k")
    harness.conn.execute("INSERT INTO second SELECT * FROM openoutbox_events")

    with harness.working() as lane:
        wait_for(lambda: lane.sessions and all(loop.source.keys.awaited() for loop in lane.sessions[0].loops))
        harness.broker.down = False
        wait_for(
            lambda: not harness.waiting() and harness.ask("SELECT status FROM second") == [("DELIVERED",)]
        )


def test_what_stands_behind_a_closed_topic_does_not_go_out_beside_it() -> None:
    """A publisher that keeps order gets several events of a key at once."""
    broker = Broker(keeps_order=True, missing={"gone"})
    destination = Destination("broker", broker, timeout=1.0)
    first = Message("1", "gone", "k", b"1", {}, "k")
    destination.publish([first], 1.0)
    broker.missing.clear()
    batch = [first, Message("2", "here", "k", b"2", {}, "k"), Message("3", "here", "l", b"3", {}, "l")]
    waits, held, passed = destination.publish(batch, 1.0)
    assert isinstance(waits, Retry)
    assert (waits.topic, waits.fault, waits.counted) == ("gone", None, False)
    assert (held, passed) == (HELD, DELIVERED)
    assert broker.delivered() == ["3"]

    wait_for(lambda: destination.publish(batch[:1], 1.0) == [DELIVERED], what="the probe")
    assert destination.topics == {}
    assert destination.publish(batch[1:2], 1.0) == [DELIVERED]
