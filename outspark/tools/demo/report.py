"""The result of the demo: each claim with its evidence, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import quantiles
from typing import Any

from outspark.contracts.maintenance import Stats
from outspark.tools.brokers.consumer import Traffic
from outspark.tools.demo.billing import Bills
from outspark.tools.demo.proof import Proof


@dataclass(frozen=True, slots=True)
class Incident:
    """The kill of a lane, and how long the lane had no host."""

    lane: str
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
class Billing:
    """The second half: what the inbox made of the messages."""

    bills: Bills
    inbox: Stats
    incident: Incident | None


@dataclass(frozen=True, slots=True)
class Claim:
    holds: bool
    text: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Report:
    broker: str
    broker_drops: bool
    """Whether the broker drops a message whose id it knows. Otherwise the consumer has to."""
    proof: Proof
    outbox: Stats
    traffic: Traffic
    received: int
    """Messages that the consumer got."""
    latency: Latency | None
    incident: Incident | None
    wanted_incident: bool
    seconds: float
    billing: Billing | None = None
    """None where no feed brings messages from the broker to an inbox."""

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
            self._box_claim("outbox", self.outbox),
            *self._kill_claim("relay", self.incident),
            *([] if self.billing is None else self._billing_claims(self.billing)),
        ]

    def examples(self) -> list[str]:
        """A few lines on what went wrong, as a start for the search."""
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
            "outbox": _stats(self.outbox),
            "killed": _incident(self.incident),
            "billing": None if self.billing is None else _billing(self.billing),
            "latency_ms": None if self.latency is None else asdict(self.latency),
            "seconds": round(self.seconds, 1),
        }

    def _billing_claims(self, billing: Billing) -> list[Claim]:
        bills = billing.bills
        return [
            Claim(
                bills.all_once and not bills.billed_twice,
                "every order was billed exactly once",
                f"{bills.billed_once:,} of {bills.orders:,}; {bills.billed_twice:,} twice",
            ),
            Claim(
                not bills.billed_without_order,
                "none that was rolled back was billed",
                f"{bills.billed_without_order:,} bills without an order",
            ),
            self._box_claim("inbox", billing.inbox),
            *self._kill_claim("inbox", billing.incident),
        ]

    def _box_claim(self, name: str, box: Stats) -> Claim:
        """The relay has delivered every event, or the handler has completed it."""
        settled = box.delivered == self.proof.committed
        left = box.pending + box.delivering
        verb = "delivered" if name == "outbox" else "completed"
        return Claim(
            settled and not left and not box.dead,
            f"the {name} says the same",
            f"{box.delivered or 0:,} {verb}, {left:,} waiting, {box.dead:,} dead",
        )

    def _kill_claim(self, kind: str, incident: Incident | None) -> list[Claim]:
        if not self.wanted_incident:
            return []
        text = f"a lane of the {kind} was killed on the way"
        if incident is None:
            return [Claim(False, text, "no lane was caught, or it did not come back")]
        where = "in mid-batch" if incident.mid_batch else "between batches"
        return [Claim(True, text, f"{where}, back after {incident.back_after_seconds:.1f} s")]


def latency(committed_at: Mapping[str, float], arrived_at: Mapping[str, float]) -> Latency | None:
    """Over the events that are in both; None when there are too few to speak of percentiles."""
    waits = [max(at - committed_at[id], 0) * 1000 for id, at in arrived_at.items() if id in committed_at]
    return _percentiles(waits)


def _stats(box: Stats) -> dict[str, int | None]:
    return {
        "pending": box.pending,
        "delivering": box.delivering,
        "delivered": box.delivered,
        "dead": box.dead,
    }


def _incident(incident: Incident | None) -> dict[str, Any] | None:
    return None if incident is None else asdict(incident)


def _billing(billing: Billing) -> dict[str, Any]:
    return {
        **asdict(billing.bills),
        "inbox": _stats(billing.inbox),
        "killed": _incident(billing.incident),
    }


def _percentiles(waits: Sequence[float]) -> Latency | None:
    if len(waits) < 2:
        return None
    cuts = quantiles(waits, n=100, method="inclusive")
    return Latency(round(cuts[49], 1), round(cuts[98], 1), round(max(waits), 1))


def count(number: int, noun: str) -> str:
    """`1 event`, `2,000 events`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
