"""Converts a Tally to the data classes of OpenTelemetry's exporters.

Not through the SDK's instruments, because these can observe counters and gauges, but not complete histograms.
"""

from __future__ import annotations

import time
from typing import Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as OtlpHistogram
from opentelemetry.sdk.metrics.export import Metric as OtlpMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from outspark.observability.metrics import Histogram, Metric, Sample, Tally
from outspark.version import __version__

_STARTED: Final = time.time_ns()


def metrics_data(tally: Tally, resource: Resource) -> MetricsData:
    now = time.time_ns()
    metrics = [_metric(metric, samples, now) for metric, samples in tally.samples() if samples]
    scope = ScopeMetrics(InstrumentationScope("outspark", __version__), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(metric: Metric, samples: list[Sample], now: int) -> OtlpMetric:
    data: Sum | Gauge | OtlpHistogram
    if metric.kind == "histogram":
        points = [_histogram(metric, sample, now) for sample in samples]
        data = OtlpHistogram(points, AggregationTemporality.CUMULATIVE)
    else:
        numbers = [_number(metric, sample, now) for sample in samples]
        cumulative = AggregationTemporality.CUMULATIVE
        data = Gauge(numbers) if metric.kind == "gauge" else Sum(numbers, cumulative, is_monotonic=True)
    return OtlpMetric(metric.name, metric.help, metric.unit, data)


def _number(metric: Metric, sample: Sample, now: int) -> NumberDataPoint:
    assert not isinstance(sample.value, Histogram)
    return NumberDataPoint(_attributes(metric, sample), _STARTED, now, sample.value)


def _histogram(metric: Metric, sample: Sample, now: int) -> HistogramDataPoint:
    value = sample.value
    assert isinstance(value, Histogram)
    return HistogramDataPoint(
        attributes=_attributes(metric, sample),
        start_time_unix_nano=_STARTED,
        time_unix_nano=now,
        count=value.count,
        sum=value.total,
        bucket_counts=value.counts,
        explicit_bounds=metric.buckets,
        # Optional on the wire, though not in the SDK's types; a Tally does not keep them.
        min=None,  # type: ignore[arg-type]
        max=None,  # type: ignore[arg-type]
    )


def _attributes(metric: Metric, sample: Sample) -> dict[str, str]:
    return {label: value for label, value in zip(metric.labels, sample.labels, strict=True) if value}
