"""How many lines an outage or a mass death makes, for all lanes and shifts together."""

from __future__ import annotations

import logging

import pytest

from outspark.causes import Causes
from outspark.outcome import Dead
from outspark.relay.lane import Lane
from outspark.relay.spec import share_out
from tests.integration.relay.place import Place


def loud(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_database_that_is_away_makes_one_line(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.relay.update(lanes=2, shift="100ms")
    place.source["url"] = "postgresql://127.0.0.1:1/nobody"
    causes = Causes(calm=60)
    for spec in share_out(place.settings(), "away", {}):
        for shift in range(2):
            report = Lane(spec.for_shift(shift, spec.relay.shift), place.destinations()).run()
            causes.take(report.lane, report.to_json()["causes"])
    [line] = loud(caplog)
    assert line.getMessage() == "lost the database; trying again: outbox"
    assert "refused" in vars(line)["error"]


def test_a_destination_that_is_down_is_told_by_the_driver(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.broker.down = True
    place.enqueue("a")
    report = place.work(lambda: bool(place.broker.batches))
    assert loud(caplog) == []
    told = {"text": "nobody answers", "count": 1, "over": False}
    assert report.causes == {"destination is down: broker": told}


def test_a_batch_of_dead_events_makes_one_line(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    names = [f"e{number}" for number in range(20)]
    place.source["slots"] = 1
    for name in names:
        place.broker.answers[name] = [Dead("too large")]
    place.enqueue(*names)

    place.work_to_the_end()

    assert {state for state, _ in place.states().values()} == {"DEAD"}
    [line] = loud(caplog)
    assert (vars(line)["count"], len(vars(line)["events"]), vars(line)["error"]) == (20, 5, "too large")
