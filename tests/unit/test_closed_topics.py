"""What is closed, found by several requests at the same time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from outspark.observability import metrics
from outspark.observability.metrics import Tally
from outspark.spark.closed_topics import ClosedTopics


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_requests_at_the_same_time_disturb_neither_each_other_nor_reports() -> None:
    closed, tally = ClosedTopics(), Tally()

    def report(lane: int) -> None:
        for number in range(50):
            topics = [
                {"destination": "d", "topic": f"{lane} {number} {n}", "reason": "gone", "since": 0.0}
                for n in range(5)
            ]
            closed.take(lane, topics)
            closed.gauge(tally)
        closed.take(lane, [])

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(report, lane) for lane in range(4)]:
            done.result()
    closed.gauge(tally)
    gauges = {
        sample.labels: sample.value for sample in dict(tally.samples())[metrics.METRICS[metrics.TOPIC_CLOSED]]
    }
    assert set(gauges.values()) == {0.0}
