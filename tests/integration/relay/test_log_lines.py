"""How many lines an outage or a mass death makes, for all lanes and shifts together."""

from __future__ import annotations

import logging

import pytest

from outspark.observability.causes import Causes
from outspark.outcome import Dead
from outspark.relay.lane import Lane
from outspark.relay.spec import assign_slots
from tests.integration.relay.harness import Harness


def loud(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_database_that_is_away_makes_one_line(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    harness.hosting.update(lanes=2, shift="100ms")
    harness.source["url"] = "postgresql://127.0.0.1:1/nobody"
    causes = Causes(calm=60)
    for spec in assign_slots(harness.settings(), "away", {}):
        for shift in range(2):
            report = Lane(spec.for_shift(shift, spec.hosting.shift), harness.destinations()).run()
            causes.take(report.lane, report.to_json()["causes"])
    [line] = loud(caplog)
    assert line.getMessage() == "lost the database; trying again: outbox"
    assert "refused" in vars(line)["error"]


def test_a_destination_that_is_down_is_told_by_the_driver(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.broker.down = True
    harness.enqueue("a")
    report = harness.work(lambda: bool(harness.broker.batches))
    assert loud(caplog) == []
    told = {"text": "nobody answers", "count": 1, "over": False}
    assert report.causes == {"destination is down: broker": told}


def test_events_that_die_of_one_thing_are_one_cause(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"e{number}" for number in range(15)]
    harness.source |= {"slots": 1, "batch_size": 5}
    for name in names:
        harness.broker.answers[name] = [Dead("too large")]
    harness.enqueue(*names)

    report = harness.work_to_the_end()

    assert {state for state, _ in harness.states().values()} == {"DEAD"}
    assert loud(caplog) == []
    [(cause, told)] = report.causes.items()
    assert cause == "events died: outbox (other)"
    assert told["count"] == 15
    assert told["text"].startswith("too large; the last were ")
