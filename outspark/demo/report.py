"""What the demo has to say in the end: each claim with its evidence, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import quantiles
from typing import Any

from outspark.contracts.upkeep import Stats
from outspark.demo.consumer import Traffic
from outspark.demo.proof import Proof


@dataclass(frozen=True, slots=True)
class Incident:
    """The kill of a lane, and how long nobody worked on its slots."""

    lane: int
    pid: int
    mid_batch: bool
    back_after_seconds: float


@dataclass(frozen=True, slots=True)
class Latency:
    """From the start of a commit to the consumer, in milliseconds."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Claim:
    holds: bool
    text: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Report:
    broker: str
    broker_drops: bool
    """Does the broker drop a message whose id it knows? Else the consumer has to."""
    proof: Proof
    outbox: Stats
    traffic: Traffic
    received: int
    """Messages that the consumer got."""
    latency: Latency | None
    incident: Incident | None
    wanted_incident: bool
    seconds: float

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims())

    @property
    def sent_twice(self) -> int:
        """Sent more often than once, each time counted."""
        return self.traffic.published - self.proof.arrived

    @property
    def dropped_by_broker(self) -> int:
        return self.traffic.published - self.traffic.stored

    @property
    def dropped_by_consumer(self) -> int:
        return self.received - self.proof.arrived

    def claims(self) -> list[Claim]:
        proof = self.proof
        return [
            Claim(
                proof.committed > 0 and not proof.lost,
                "every committed event arrived",
                f"{proof.committed - len(proof.lost):,} of {proof.committed:,}",
            ),
            Claim(
                not proof.undone,
                "none of a rolled-back transaction did",
                f"{len(proof.undone):,} of {proof.rolled_back:,}",
            ),
            Claim(
                not proof.unknown and not proof.altered,
                "nothing was made up or changed",
                f"{len(proof.unknown):,} unknown, {len(proof.altered):,} changed",
            ),
            Claim(
                not proof.overtaken,
                "each order's events arrived in order",
                f"{len(proof.overtaken):,} overtaken in {proof.keys:,} orders",
            ),
            self._outbox_claim(),
            *([self._kill_claim()] if self.wanted_incident else []),
        ]

    def examples(self) -> list[str]:
        """A few lines on what went wrong, to begin the search with."""
        proof = self.proof
        return [
            *(f"lost: event {fact.id}, order {fact.key}, its event {fact.number}" for fact in proof.lost[:3]),
            *(f"rolled back, but arrived: event {id}" for id in proof.undone[:3]),
            *(f"arrived, but never written: event {id}" for id in proof.unknown[:3]),
            *(f"changed on the way: event {fact.id}, arrived as {fact}" for fact in proof.altered[:3]),
            *(
                f"order {late.key}: its event {late.number} arrived after its event {early.number}"
                for early, late in proof.overtaken[:3]
            ),
        ]

    def to_json(self) -> dict[str, Any]:
        proof = self.proof
        return {
            "holds": self.holds,
            "broker": self.broker,
            "committed": proof.committed,
            "rolled_back": proof.rolled_back,
            "orders": proof.keys,
            "arrived": proof.arrived,
            "lost": [fact.id for fact in proof.lost],
            "rolled_back_arrived": list(proof.undone),
            "unknown": list(proof.unknown),
            "altered": [fact.id for fact in proof.altered],
            "out_of_order": [late.id for _, late in proof.overtaken],
            "twice_at_consumer": len(proof.twice),
            "sent_twice": self.sent_twice,
            "dropped_by_broker": self.dropped_by_broker,
            "dropped_by_consumer": self.dropped_by_consumer,
            "outbox": {
                "pending": self.outbox.pending,
                "delivering": self.outbox.delivering,
                "delivered": self.outbox.delivered,
                "dead": self.outbox.dead,
            },
            "killed": None if self.incident is None else asdict(self.incident),
            "latency_ms": None if self.latency is None else asdict(self.latency),
            "seconds": round(self.seconds, 1),
        }

    def _outbox_claim(self) -> Claim:
        box = self.outbox
        settled = box.delivered == self.proof.committed
        left = box.pending + box.delivering
        return Claim(
            settled and not left and not box.dead,
            "the outbox says the same",
            f"{box.delivered or 0:,} delivered, {left:,} waiting, {box.dead:,} dead",
        )

    def _kill_claim(self) -> Claim:
        if self.incident is None:
            return Claim(False, "a lane was killed on the way", "no lane was caught, or it did not come back")
        incident = self.incident
        where = "in mid-batch" if incident.mid_batch else "between batches"
        evidence = f"{where}, back after {incident.back_after_seconds:.1f} s"
        return Claim(True, "a lane was killed on the way", evidence)


def latency(committed_at: Mapping[str, float], arrived_at: Mapping[str, float]) -> Latency | None:
    """Over the events that are in both; None when there are too few to speak of percentiles."""
    waits = [max(at - committed_at[id], 0) * 1000 for id, at in arrived_at.items() if id in committed_at]
    return _percentiles(waits)


def _percentiles(waits: Sequence[float]) -> Latency | None:
    if len(waits) < 2:
        return None
    cuts = quantiles(waits, n=100, method="inclusive")
    return Latency(round(cuts[49], 1), round(cuts[98], 1), round(max(waits), 1))


def count(number: int, noun: str) -> str:
    """`1 event`, `2,000 events`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
