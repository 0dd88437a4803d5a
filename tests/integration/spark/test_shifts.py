"""Shifts on a real Spark: reports come home, a lane that fails says why in one line and is started again."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import SparkSession

from outspark import contracts
from outspark.config.settings import LogSettings, Settings
from outspark.database.names import TableName
from outspark.database.session import connect
from outspark.hosting.control import STOP, notify
from outspark.observability import metrics
from outspark.observability.metrics import Tally
from outspark.outbox.openoutbox import NewEvent, Outbox
from outspark.relay.spec import RelayLaneSpec, assign_slots
from outspark.spark.session import has_ended
from outspark.spark.shifts import FIRST_PAUSE, Shifts
from tests.databases import Database
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("spark")

PATIENCE = 120.0
_runs = itertools.count(1)


@dataclass(slots=True)
class Driver:
    """What the application does with a lane: it takes in reports and counts failures."""

    shifts: Shifts = field(init=False)
    tally: Tally = field(default_factory=Tally)
    reports: list[dict[str, Any]] = field(default_factory=list)
    failed_at: list[float] = field(default_factory=list)

    def report(self, report: dict[str, Any]) -> None:
        self.reports.append(report)
        self.tally.merge(Tally.from_json(report["tally"]))

    def fail(self, lane: int, error: Exception) -> None:
        self.failed_at.append(time.monotonic())

    def await_delivered(self, count: int) -> None:
        wait_for(
            lambda: self.tally.value(metrics.EVENTS_TOTAL, status="delivered") == count,
            timeout=PATIENCE,
            what=f"a report of {count} events",
        )


def spec(url: str, destination: dict[str, Any], shift: str = "2s") -> RelayLaneSpec:
    settings = Settings.model_validate(
        {
            "relay": {"id": "test"},
            "hosting": {"lanes": 1, "shift": shift},
            "sources": {"default": {"url": url}},
            "destinations": {"default": destination},
        }
    )
    [lane] = assign_slots(settings, f"run{next(_runs)}", {})
    return lane


@contextmanager
def driving(spark: SparkSession, lane: RelayLaneSpec) -> Iterator[Driver]:
    """The lane is hosted within; at the end it must end by itself."""
    driver, stopping = Driver(), threading.Event()
    driver.shifts = Shifts(
        spark=spark,
        spec=lane,
        log=LogSettings(level="error"),
        tag=f"test-{lane.instance}",
        report=driver.report,
        failed=driver.fail,
        stopping=stopping,
        stagger=1.0,
    )
    thread = threading.Thread(target=driver.shifts.run, daemon=True)
    thread.start()
    try:
        yield driver
    finally:
        stopping.set()
        wait_for(lambda: _stopped(lane, thread), timeout=PATIENCE, what="an end of the lane")


def _stopped(lane: RelayLaneSpec, thread: threading.Thread) -> bool:
    with connect(lane.sources[0].settings.url.get_secret_value(), "test") as conn:
        notify(conn, lane.channel, STOP)
    thread.join(0.2)
    return not thread.is_alive()


@pytest.fixture
def outbox(database: Database) -> Database:
    for statement in contracts.get("openoutbox").statements(TableName("openoutbox_events")):
        database.connect().execute(statement.encode())
    return database


def test_reports_of_all_shifts_add_up(spark: SparkSession, outbox: Database) -> None:
    conn = outbox.connect()
    with driving(spark, spec(outbox.url, {"type": "null"})) as driver:
        for round in range(1, 4):
            Outbox().enqueue(conn, *(NewEvent("order", b"", key=f"k{n % 5}") for n in range(50)))
            driver.await_delivered(50 * round)
    # Of two that overlap, the later one may be up first and be relieved by the one before it.
    assert sorted(report["shift"] for report in driver.reports) == list(range(len(driver.reports)))
    assert driver.tally.value(metrics.HANDOVERS_TOTAL) >= 2
    assert driver.reports[-1]["stopped"]
    assert (driver.shifts.failures, driver.shifts.problem, driver.failed_at) == (0, "", [])
    assert conn.execute("SELECT DISTINCT clean FROM outspark_slots").fetchall() == [(True,)]


def test_a_lane_that_fails_is_started_again_ever_more_rarely(spark: SparkSession, outbox: Database) -> None:
    wrong = {"type": "stdout", "options": {"colour": "red"}}
    with driving(spark, spec(outbox.url, wrong)) as driver:
        wait_for(lambda: len(driver.failed_at) >= 4, timeout=PATIENCE, what="four failures")
        problem, failures = driver.shifts.problem, driver.shifts.failures
    assert failures >= 4
    assert problem == (
        "outspark.errors.SettingsError: destinations.default.options: colour is not one of: path"
    )
    pauses = [after - before for before, after in pairwise(driver.failed_at)]
    for number, pause in enumerate(pauses[1:], start=1):
        assert pause >= FIRST_PAUSE * 2**number, pauses
    assert not driver.shifts.lost
    assert not has_ended(spark)


def test_a_database_that_is_away_is_no_failure_of_the_lane(spark: SparkSession, outbox: Database) -> None:
    conn = outbox.connect()
    conn.execute("ALTER TABLE openoutbox_events RENAME TO elsewhere")
    with driving(spark, spec(outbox.url, {"type": "null"}, shift="1s")) as driver:
        wait_for(lambda: driver.reports, timeout=PATIENCE, what="a report")
        conn.execute("ALTER TABLE elsewhere RENAME TO openoutbox_events")
        Outbox().enqueue(conn, NewEvent("order", b""))
        driver.await_delivered(1)
    assert "there is no table openoutbox_events" in driver.reports[0]["problems"][0]
    assert driver.failed_at == []
    assert conn.execute("SELECT status FROM openoutbox_events").fetchall() == [("DELIVERED",)]
