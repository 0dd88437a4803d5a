"""Counting in one process, adding up across processes, and the names that dashboards rely on."""

from __future__ import annotations

import json
import random

import pytest

from outspark.observability import metrics
from outspark.observability.metrics import METRICS, Histogram, Tally


def histogram(tally: Tally, name: str) -> Histogram:
    [sample] = next(samples for metric, samples in tally.samples() if metric.name == name)
    assert isinstance(sample.value, Histogram)
    return sample.value


def test_counts_add_up_per_label() -> None:
    tally = Tally()
    tally.add(metrics.EVENTS_TOTAL, 3, source="orders", status="delivered")
    tally.add(metrics.EVENTS_TOTAL, 2, source="orders", status="delivered")
    tally.add(metrics.EVENTS_TOTAL, source="orders", status="dead")
    assert tally.value(metrics.EVENTS_TOTAL, source="orders", status="delivered") == 5
    assert tally.value(metrics.EVENTS_TOTAL, source="orders") == 6
    assert tally.value(metrics.EVENTS_TOTAL, source="billing") == 0


def test_a_value_on_a_bound_belongs_to_the_bucket_below() -> None:
    tally = Tally()
    for value in (1, 1.5, 2, 10_001):
        tally.observe(metrics.BATCH_SIZE, value, source="orders")
    counts = histogram(tally, metrics.BATCH_SIZE).counts
    assert counts[:3] == [1, 2, 0]
    assert counts[-1] == 1


def test_observing_many_is_observing_each() -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    values = [rng.choice([rng.expovariate(20), 0.01, 0.0, 100_000.0]) for _ in range(500)]
    each, many = Tally(), Tally()
    for value in values:
        each.observe(metrics.E2E_LATENCY, value, source="orders")
    many.observe_many(metrics.E2E_LATENCY, values, source="orders")
    assert histogram(many, metrics.E2E_LATENCY).counts == histogram(each, metrics.E2E_LATENCY).counts, seed
    assert histogram(many, metrics.E2E_LATENCY).total == pytest.approx(
        histogram(each, metrics.E2E_LATENCY).total
    )
    assert histogram(many, metrics.E2E_LATENCY).count == 500


def test_observing_nothing_changes_nothing() -> None:
    tally = Tally()
    tally.observe_many(metrics.E2E_LATENCY, [], source="orders")
    assert histogram(tally, metrics.E2E_LATENCY).count == 0


def test_a_tally_travels_as_json_and_merges() -> None:
    lane = Tally()
    lane.add(metrics.HELD_TOTAL, 4, source="orders")
    lane.observe(metrics.STORAGE_LATENCY, 0.003, source="orders", op="claim")
    lane.set(metrics.BREAKER_OPEN, 1, destination="nats")

    driver = Tally()
    driver.add(metrics.HELD_TOTAL, 1, source="orders")
    driver.set(metrics.BREAKER_OPEN, 0, destination="nats")
    for _ in range(2):
        driver.merge(Tally.from_json(json.loads(json.dumps(lane.to_json()))))

    assert driver.value(metrics.HELD_TOTAL, source="orders") == 9
    assert driver.value(metrics.BREAKER_OPEN, destination="nats") == 1
    assert histogram(driver, metrics.STORAGE_LATENCY).count == 2
    assert histogram(lane, metrics.STORAGE_LATENCY).count == 1


def test_wrong_use_is_refused() -> None:
    tally = Tally()
    with pytest.raises(ValueError, match=r"openoutbox.events.total is a counter, not a gauge"):
        tally.set(metrics.EVENTS_TOTAL, 1)
    with pytest.raises(ValueError, match=r"has the labels \('source', 'status'\), not \('event_type',\)"):
        tally.add(metrics.EVENTS_TOTAL, event_type="order.created")


def test_names_on_the_wire() -> None:
    assert METRICS[metrics.EVENTS_TOTAL].prometheus_name == "openoutbox_events_total"
    assert METRICS[metrics.E2E_LATENCY].prometheus_name == "openoutbox_events_e2e_latency_seconds"
    assert METRICS[metrics.OLDEST_AGE_SECONDS].prometheus_name == "openoutbox_backlog_oldest_age_seconds"
    assert len({metric.prometheus_name for metric in METRICS.values()}) == len(METRICS)
