"""All metrics by name, and `Tally`, which holds their values in one process.

A lane fills a Tally and returns it as JSON at the end of its shift; the driver merges it into its own.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal

Kind = Literal["counter", "histogram", "gauge"]
Labels = tuple[str, ...]

SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
AGES: Final = (*SECONDS, 60.0, 300.0, 1800.0, 7200.0, 86_400.0)
SIZES: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0)

EVENTS_TOTAL: Final = "openoutbox.events.total"
BATCH_SIZE: Final = "openoutbox.events.batch_size"
E2E_LATENCY: Final = "openoutbox.events.e2e_latency"
STORAGE_LATENCY: Final = "openoutbox.storage.latency"
PUBLISHER_LATENCY: Final = "openoutbox.publisher.latency"
PENDING_COUNT: Final = "openoutbox.backlog.pending_count"
OLDEST_AGE_SECONDS: Final = "openoutbox.backlog.oldest_age_seconds"
LANES_RUNNING: Final = "outspark.lanes.running"
SLOTS_OWNED: Final = "outspark.slots.owned"
HANDOVERS_TOTAL: Final = "outspark.handovers.total"
LEASES_LOST_TOTAL: Final = "outspark.leases.lost.total"
HELD_TOTAL: Final = "outspark.events.held.total"
ADOPTED_TOTAL: Final = "outspark.events.adopted.total"
REAPED_TOTAL: Final = "outspark.events.reaped.total"
BREAKER_OPEN: Final = "outspark.breaker.open"
TOPIC_CLOSED: Final = "outspark.topic.closed"
TYPE_PAUSED: Final = "outspark.type.paused"
LANE_RESTARTS_TOTAL: Final = "outspark.lane.restarts.total"
DOORBELL_RINGS_TOTAL: Final = "outspark.doorbell.rings.total"
JEAP_POST_TOTAL: Final = "outbox_messages_post_total"
JEAP_TRANSMIT: Final = "outbox_messages_transmit"
JEAP_READY_COUNT: Final = "outbox_messages_ready_to_be_sent_count"
JEAP_READY_QUERY: Final = "outbox_messages_ready_to_be_sent_query"
JEAP_FAILED_COUNT: Final = "outbox_messages_failed_count"

INBOX_ACCEPTED_TOTAL: Final = "outspark.inbox.accepted.total"
INBOX_EVENTS_TOTAL: Final = "outspark.inbox.events.total"
INBOX_HANDLER_LATENCY: Final = "outspark.inbox.handler.latency"
INBOX_GIVEN_BACK_TOTAL: Final = "outspark.inbox.given_back.total"
INBOX_HUNG_TOTAL: Final = "outspark.inbox.hung.total"
INBOX_INTAKE_FAILURES_TOTAL: Final = "outspark.inbox.intake_failures.total"
INBOX_PENDING_COUNT: Final = "outspark.inbox.pending_count"
INBOX_OLDEST_AGE_SECONDS: Final = "outspark.inbox.oldest_age_seconds"
INBOX_DEAD_COUNT: Final = "outspark.inbox.dead_count"
INBOX_PAUSED_COUNT: Final = "outspark.inbox.paused_count"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Kind
    help: str
    labels: Labels = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """The name as an OpenTelemetry collector exports it: with underscores for dots, and `_seconds` for seconds."""
        name = self.name.replace(".", "_")
        return f"{name}_seconds" if self.unit == "s" and not name.endswith("_seconds") else name

    def label_values(self, labels: dict[str, str]) -> Labels:
        if not labels.keys() <= set(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {tuple(labels)}")
        return tuple(labels.get(label, "") for label in self.labels)


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, "counter", help, labels)


def _gauge(name: str, help: str, *labels: str, unit: str = "") -> Metric:
    return Metric(name, "gauge", help, labels, unit)


def _histogram(
    name: str, help: str, *labels: str, unit: str = "s", buckets: tuple[float, ...] = SECONDS
) -> Metric:
    return Metric(name, "histogram", help, labels, unit, buckets)


METRICS: Final[dict[str, Metric]] = {
    metric.name: metric
    for metric in (
        _counter(
            EVENTS_TOTAL,
            "Events settled, by outcome: delivered, skipped, retry, dead.",
            "source",
            "status",
        ),
        _histogram(BATCH_SIZE, "Events per claim.", "source", unit="", buckets=SIZES),
        _histogram(
            E2E_LATENCY,
            "Time from an event's creation to the broker's acknowledgement.",
            "source",
            buckets=AGES,
        ),
        _histogram(
            STORAGE_LATENCY, "Database statements of the lanes: claim, settle, adopt, reap.", "source", "op"
        ),
        _histogram(
            PUBLISHER_LATENCY,
            "Time from handing a batch to a publisher until all of its answers.",
            "destination",
        ),
        _gauge(PENDING_COUNT, "Pending events in the table.", "source"),
        _gauge(OLDEST_AGE_SECONDS, "Age of the oldest pending event.", "source", unit="s"),
        _gauge(LANES_RUNNING, "Lanes that run in a Spark task now."),
        _gauge(SLOTS_OWNED, "Slots that lanes of this application own.", "source"),
        _counter(HANDOVERS_TOTAL, "Shifts that handed their slots over to the next shift."),
        _counter(
            LEASES_LOST_TOTAL,
            "Events that another lane had claimed by the time this one settled them.",
            "source",
        ),
        _counter(
            HELD_TOTAL, "Events put back because an earlier event of their key did not succeed.", "source"
        ),
        _counter(ADOPTED_TOTAL, "Claims taken over from an owner that crashed or disconnected.", "source"),
        _counter(REAPED_TOTAL, "Claims released because their lease expired.", "source"),
        _gauge(BREAKER_OPEN, "1 while the circuit breaker of a destination is open, else 0.", "destination"),
        _gauge(
            TOPIC_CLOSED,
            "1 while events wait for a topic that is missing, forbidden or full, else 0.",
            "destination",
            "topic",
        ),
        _gauge(
            TYPE_PAUSED,
            "1 while a type of events is paused because too many of its events died.",
            "source",
            "type",
        ),
        _counter(LANE_RESTARTS_TOTAL, "Shifts that failed and were started again."),
        _counter(DOORBELL_RINGS_TOTAL, "How often the doorbell woke a sleeping lane.", "source"),
        _counter(
            JEAP_POST_TOTAL,
            "Messages put into a jEAP outbox, for immediate or scheduled delivery, by how the transaction ended: "
            "committed, rolled_back, unknown.",
            "delivery_type",
            "tx_status",
        ),
        _histogram(
            JEAP_TRANSMIT,
            "Messages of a jEAP outbox that the broker acknowledged, immediate or scheduled, and how long that took.",
            "source",
            "delivery_type",
        ),
        _gauge(JEAP_READY_COUNT, "Messages of a jEAP outbox that are ready to be sent: the lag.", "source"),
        _histogram(JEAP_READY_QUERY, "The query for messages of a jEAP outbox that are ready.", "source"),
        _gauge(
            JEAP_FAILED_COUNT,
            "Failed messages of a jEAP outbox: resend_enabled or resend_disabled.",
            "source",
            "resend_status",
        ),
        _counter(
            INBOX_ACCEPTED_TOTAL,
            "Messages consumed, by result: new, duplicate, duplicate_key, refused, out_of_partitions.",
            "group",
            "outcome",
        ),
        _counter(
            INBOX_EVENTS_TOTAL,
            "Events of an inbox after a try, by outcome: handled, skipped, retry, dead, held, lost.",
            "group",
            "status",
        ),
        _histogram(INBOX_HANDLER_LATENCY, "Run time of handlers.", "group"),
        _counter(
            INBOX_GIVEN_BACK_TOTAL,
            "Events released from workers that crashed, disconnected or hang.",
            "group",
        ),
        _counter(INBOX_HUNG_TOTAL, "Handlers that exceeded their timeout.", "group"),
        _counter(
            INBOX_INTAKE_FAILURES_TOTAL,
            "Restarts of a consumer after an error of the broker or the database.",
            "group",
        ),
        _gauge(INBOX_PENDING_COUNT, "Pending events of an inbox.", "inbox"),
        _gauge(INBOX_OLDEST_AGE_SECONDS, "Age of the oldest pending event of an inbox.", "inbox"),
        _gauge(INBOX_DEAD_COUNT, "Dead events of an inbox.", "inbox"),
        _gauge(
            INBOX_PAUSED_COUNT,
            "Types of events that are paused because their handlers fail the same way.",
            "inbox",
        ),
    )
}


@dataclass(slots=True)
class Histogram:
    """`counts[i]` is the number of values up to `buckets[i]` and above the bound before; the last counts the rest."""

    counts: list[int]
    total: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Labels
    value: float | Histogram


class Tally:
    """Counters, histograms and gauges of one process. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[tuple[str, Labels], float] = {}
        self._histograms: dict[tuple[str, Labels], Histogram] = {}

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        key = _key(name, "counter", labels)
        with self._lock:
            self._numbers[key] = self._numbers.get(key, 0) + value

    def set(self, name: str, value: float, **labels: str) -> None:
        key = _key(name, "gauge", labels)
        with self._lock:
            self._numbers[key] = value

    def observe(self, name: str, value: float, **labels: str) -> None:
        key = _key(name, "histogram", labels)
        with self._lock:
            histogram = self._histogram(key)
            histogram.counts[bisect_left(METRICS[name].buckets, value)] += 1
            histogram.total += value

    def observe_many(self, name: str, values: Sequence[float], **labels: str) -> None:
        # Sorting once and bisecting the bounds takes a third of the time of bisecting for each value.
        key = _key(name, "histogram", labels)
        ordered = sorted(values)
        cuts = [0, *(bisect_right(ordered, bound) for bound in METRICS[name].buckets), len(ordered)]
        with self._lock:
            histogram = self._histogram(key)
            _add_counts(histogram.counts, [end - start for start, end in pairwise(cuts)])
            histogram.total += sum(ordered)

    def merge(self, other: Tally) -> None:
        """Counters and histograms add up; a gauge takes the other's value."""
        numbers, histograms = other._copy()
        with self._lock:
            for key, value in numbers.items():
                before = 0 if METRICS[key[0]].kind == "gauge" else self._numbers.get(key, 0)
                self._numbers[key] = before + value
            for key, theirs in histograms.items():
                ours = self._histogram(key)
                _add_counts(ours.counts, theirs.counts)
                ours.total += theirs.total

    def value(self, name: str, **labels: str) -> float:
        """The current value of a counter or gauge; 0 when nothing was recorded. Sums over labels that are not given."""
        given = set(labels.items())
        wanted = METRICS[name].labels
        with self._lock:
            return sum(
                number
                for (metric, values), number in self._numbers.items()
                if metric == name and given <= set(zip(wanted, values, strict=True))
            )

    def samples(self) -> Iterator[tuple[Metric, list[Sample]]]:
        """Every metric in the order of METRICS, with its recorded samples, if any."""
        numbers, histograms = self._copy()
        for name, metric in METRICS.items():
            recorded: Iterable[tuple[tuple[str, Labels], float | Histogram]]
            recorded = histograms.items() if metric.kind == "histogram" else numbers.items()
            yield metric, [Sample(key[1], value) for key, value in recorded if key[0] == name]

    def to_json(self) -> dict[str, Any]:
        numbers, histograms = self._copy()
        return {
            "numbers": [[name, list(labels), value] for (name, labels), value in numbers.items()],
            "histograms": [
                [name, list(labels), h.counts, h.total] for (name, labels), h in histograms.items()
            ],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Tally:
        tally = cls()
        tally._numbers = {(name, tuple(labels)): value for name, labels, value in data["numbers"]}
        tally._histograms = {
            (name, tuple(labels)): Histogram(list(counts), total)
            for name, labels, counts, total in data["histograms"]
        }
        return tally

    def _histogram(self, key: tuple[str, Labels]) -> Histogram:
        found = self._histograms.get(key)
        if found is None:
            found = self._histograms[key] = Histogram([0] * (len(METRICS[key[0]].buckets) + 1))
        return found

    def _copy(self) -> tuple[dict[tuple[str, Labels], float], dict[tuple[str, Labels], Histogram]]:
        with self._lock:
            histograms = {key: Histogram(list(h.counts), h.total) for key, h in self._histograms.items()}
            return dict(self._numbers), histograms


def _key(name: str, kind: Kind, labels: dict[str, str]) -> tuple[str, Labels]:
    metric = METRICS[name]
    if metric.kind != kind:
        raise ValueError(f"{name} is a {metric.kind}, not a {kind}")
    return name, metric.label_values(labels)


def _add_counts(counts: list[int], more: Sequence[int]) -> None:
    for index, count in enumerate(more):
        counts[index] += count
