"""Lines about what goes wrong: few, whoever raises it and however often."""

from __future__ import annotations

import logging

import pytest

from outspark.observability.causes import Causes, Trouble


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _talkative(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "outspark.observability.causes")


def said(lines: list[logging.LogRecord]) -> list[str]:
    return [record.getMessage() for record in lines]


def test_ten_minutes_make_five_lines(caplog: pytest.LogCaptureFixture) -> None:
    lines = caplog.records
    clock = Clock()
    causes = Causes(clock=clock)
    told_at: list[int] = []
    for second in range(600):
        clock.now = float(second)
        causes.raise_("no database", "refused", count=2, who=second % 2)
        told_at += [second] * (len(lines) - len(told_at))
    causes.clear("no database", who=0)
    causes.clear("no database", who=1)

    assert told_at == [0, 60, 180, 420]
    assert said(lines) == ["no database", *["no database: ongoing"] * 3, "no database: over"]
    assert (vars(lines[-1])["count"], vars(lines[-1])["seconds"]) == (1200, 599)
    assert [record.levelname for record in lines] == ["WARNING"] * 4 + ["INFO"]


def test_intervals_grow_to_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    lines = caplog.records
    clock = Clock()
    causes = Causes(clock=clock)
    for minute in range(24 * 60):
        clock.now = 60.0 * minute
        causes.raise_("no database", "refused")
    assert len(lines) == 1 + 6 + 22


def test_lanes_that_notice_one_after_the_other_are_one_outage(caplog: pytest.LogCaptureFixture) -> None:
    lines = caplog.records
    clock = Clock()
    causes = Causes(calm=15, clock=clock)
    over = {"no database": {"text": "refused", "count": 3, "over": True}}
    causes.take(0, over)
    clock.now = 10.0
    causes.take(1, over)
    clock.now = 24.0
    causes.write_due()
    assert said(lines) == ["no database"]
    clock.now = 25.0
    causes.write_due()
    assert said(lines) == ["no database", "no database: over"]
    assert vars(lines[-1])["count"] == 6


def test_what_a_report_does_not_mention_is_over(caplog: pytest.LogCaptureFixture) -> None:
    lines = caplog.records
    causes, trouble = Causes(), Trouble()
    trouble.raise_("no database", "refused")
    causes.take(0, trouble.found)
    causes.take(1, {})
    assert said(lines) == ["no database"]
    causes.take(0, {})
    assert said(lines) == ["no database", "no database: over"]
