"""Taking messages in from a broker, through all that can be away for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from outspark.config.inbox import InboxSettings
from outspark.config.settings import Settings
from outspark.errors import OutsparkError, TableInvalid
from outspark.inbox.intake.consumer import Consumer
from outspark.inbox.lane import InboxLane, InboxLaneSpec, Task, inbox_lanes
from outspark.maintenance.partitions import Partitions
from outspark.observability.metrics import (
    HANDOVERS_TOTAL,
    INBOX_ACCEPTED_TOTAL,
    INBOX_EVENTS_TOTAL,
    INBOX_INTAKE_FAILURES_TOTAL,
    Tally,
)
from outspark.tools.servers.nats import Nats
from tests.databases import Database
from tests.history.inbox.brokers import NatsBroker
from tests.history.inbox.drafts import Draft
from tests.integration.inbox.harness import Harness, open_harness
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("nats")

CUT = """\
-- End the sessions of whoever takes messages in
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND starts_with(application_name, 'outspark')"""


@dataclass
class Inlet:
    """An inbox, and a stream that it takes from."""

    harness: Harness
    broker: NatsBroker
    topic: str
    tally: Tally

    def settings(self, **more: Any) -> dict[str, Any]:
        usual = {"url": self.harness.database.url, "table": self.harness.table, "group": "billing"}
        return {**usual, "feed": {**self.broker.feed(self.topic), "batch_size": 5}, **more}

    def consumer(self, **more: Any) -> Consumer:
        return Consumer(InboxSettings.model_validate(self.settings(**more)), "consumer", tally=self.tally)

    @contextmanager
    def taking(self, **more: Any) -> Iterator[None]:
        """In a thread, which is told to stop at the end; its errors come out then."""
        stopping = threading.Event()
        with ThreadPoolExecutor() as pool:
            running = pool.submit(self.consumer(**more).run, stopping)
            try:
                yield
            finally:
                stopping.set()
            running.result(30)

    def publish(self, *names: str) -> None:
        self.broker.publish(self.topic, [(Draft(name, id=name), 0) for name in names])

    def await_taken(self, *names: str) -> None:
        wait_for(lambda: set(self.harness.states()) == set(names), timeout=20, what=f"rows of {names}")

    @property
    def failures(self) -> float:
        return self.tally.value(INBOX_INTAKE_FAILURES_TOTAL)

    def drained(self) -> bool:
        return self.broker.drained(self.topic, ["billing"])


def open_inlet(harness: Harness, server: Nats) -> Inlet:
    broker, topic = NatsBroker(server), f"taking-{uuid4().hex}"
    broker.open_topic(topic)
    return Inlet(harness, broker, topic, Tally())


@pytest.fixture
def inlet(harness: Harness, nats_server: Nats) -> Inlet:
    return open_inlet(harness, nats_server)


def test_it_takes_what_was_there_and_what_comes(inlet: Inlet) -> None:
    inlet.publish("a", "b")
    with inlet.taking():
        inlet.await_taken("a", "b")
        inlet.publish("c", "a")
        inlet.await_taken("a", "b", "c")
        wait_for(inlet.drained, what="acknowledgements")

    assert inlet.failures == 0
    assert inlet.tally.value(INBOX_ACCEPTED_TOTAL, outcome="new") == 3
    assert inlet.tally.value(INBOX_ACCEPTED_TOTAL, outcome="duplicate") == 1


def test_the_next_one_goes_on_where_the_last_one_ended(inlet: Inlet) -> None:
    inlet.publish("a")
    with inlet.taking():
        inlet.await_taken("a")
    inlet.publish("b")
    with inlet.taking():
        inlet.await_taken("a", "b")

    assert inlet.tally.value(INBOX_ACCEPTED_TOTAL, outcome="duplicate") == 0


def test_on_success_the_broker_hears_when_the_handler_is_through(inlet: Inlet) -> None:
    inlet.publish("a", "b")
    with inlet.taking(strategy="at-least-once-on-success"):
        inlet.await_taken("a", "b")
        assert not inlet.drained()
        inlet.harness.conn.execute(
            f"UPDATE {inlet.harness.table} SET status = 'completed', completed_at = now()".encode()
        )
        wait_for(inlet.drained, timeout=20, what="acknowledgements")


def test_an_inbox_without_a_feed_takes_nothing(inlet: Inlet) -> None:
    with pytest.raises(OutsparkError, match="no feed"):
        inlet.consumer(feed=None).run(threading.Event())


def test_a_table_that_is_not_there_is_no_passing_failure(inlet: Inlet) -> None:
    with pytest.raises(TableInvalid, match="nowhere"):
        inlet.consumer(table="nowhere").run(threading.Event())


@pytest.mark.faults
def test_a_broker_that_goes_away_and_comes_back(harness: Harness) -> None:
    with Nats() as server:
        inlet = open_inlet(harness, server)
        inlet.publish("a", "b")
        server.stop()
        with inlet.taking():
            server.start()
            inlet.await_taken("a", "b")
            server.stop()
            server.start()
            inlet.publish("c")
            inlet.await_taken("a", "b", "c")


@pytest.mark.faults
def test_a_database_that_goes_away_and_comes_back(inlet: Inlet) -> None:
    inlet.publish("a")
    with inlet.taking():
        inlet.await_taken("a")
        inlet.harness.conn.execute(CUT)
        inlet.publish("b", "c")
        inlet.await_taken("a", "b", "c")
        wait_for(inlet.drained, timeout=20, what="acknowledgements")

    assert inlet.failures >= 1


@pytest.mark.faults
def test_without_a_partition_for_the_present_it_waits_for_one(database: Database, nats_server: Nats) -> None:
    harness = open_harness(database, partitioned=True)
    for (name,) in harness.ask(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass", harness.table
    ):
        harness.conn.execute(f"DROP TABLE {name}".encode())
    inlet = open_inlet(harness, nats_server)
    inlet.publish("a", "b")
    with inlet.taking():
        wait_for(lambda: inlet.failures >= 1, timeout=20, what="a failure")
        assert not inlet.drained()

        Partitions(harness.conn, harness.table).create_ahead()
        inlet.await_taken("a", "b")
        wait_for(inlet.drained, timeout=20, what="acknowledgements")


def lanes(inlet: Inlet, *tasks: Task, shift: str = "600s", **more: Any) -> list[InboxLaneSpec]:
    """One lane for each task."""
    settings = Settings.model_validate(
        {
            "relay": {"id": "till/1"},
            "hosting": {"lanes": 1, "shift": shift},
            "inboxes": {"billing": inlet.settings(**more)},
        }
    )
    return inbox_lanes(settings, ["billing"], tasks, "i", {})


def test_a_lane_hands_over_to_its_next_shift(inlet: Inlet) -> None:
    [spec] = lanes(inlet, "consume", shift="200ms")
    first, second = (InboxLane(spec.for_shift(number, spec.hosting.shift)) for number in (1, 2))
    inlet.publish("a", "b")
    done = threading.Event()
    with ThreadPoolExecutor() as pool:
        before = pool.submit(first.run, done.is_set)
        inlet.await_taken("a", "b")
        after = pool.submit(second.run, done.is_set)
        try:
            report = before.result(20)
            inlet.publish("c")
            inlet.await_taken("a", "b", "c")
        finally:
            done.set()
        after.result(20)

    assert not report.stopped
    assert first.tally.value(HANDOVERS_TOTAL) == 1
    assert (taken(first.tally), taken(second.tally)) == (2, 1)
    wait_for(inlet.drained, timeout=20, what="acknowledgements")


def taken(tally: Tally) -> float:
    return tally.value(INBOX_ACCEPTED_TOTAL)


def test_a_lane_works_with_the_handlers_that_its_settings_name(inlet: Inlet) -> None:
    [take, work] = lanes(inlet, "consume", "handle", app="tests.integration.inbox.handlers:router")
    inlet.publish("a", "b")
    InboxLane(take).run(lambda: len(inlet.harness.states()) == 2)

    report = InboxLane(work).run(lambda: not inlet.harness.waiting())

    assert sorted(inlet.harness.effects()) == ["a", "b"]
    assert Tally.from_json(report.tally).value(INBOX_EVENTS_TOTAL, status="handled") == 2
