"""Drains to a broker: Spark beside bare lanes with the same client, and what that client costs."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from outspark.config.settings import Lease
from outspark.tools.bench.drain import Case, Sample, drain
from outspark.tools.bench.results import Target
from outspark.tools.bench.run import Run, compare
from outspark.tools.brokers import Broker, BrokerName


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the relay on Spark has to reach with one broker; None is not asked for."""

    leases: tuple[Lease, ...] = ("row",)
    of_bare: float = 0.9
    rate: float | None = None
    per_core: float | None = None
    """Events a second for each core that our processes use."""
    of_null: float | None = None
    of_one_by_one: float | None = None


WANTED: dict[BrokerName, Wanted] = {
    "nats": Wanted(("row", "slot"), per_core=12_000),
    "kafka": Wanted(("row", "slot"), of_null=0.5, of_one_by_one=10),
    "rabbitmq": Wanted(rate=10_000),
    "redis": Wanted(rate=10_000),
}


def measure_broker(run: Run, name: BrokerName) -> None:
    """Bare lanes and Spark by turns, each event in the broker at the end, and where the time goes."""
    with run.broker(name, name) as broker:
        if broker is None:
            return
        # First, because it also warms up the broker for those that count.
        _profile(run, broker)
        for lease in WANTED[name].leases:
            _compare(run, broker, WANTED[name], lease)


def _profile(run: Run, broker: Broker) -> None:
    """A drain with a profiler on the first lane: it is slower, and only its proportions count."""
    from outspark.tools.bench.profiling import shares

    run.begin(f"{broker.name}: profile", 1)
    with tempfile.TemporaryDirectory(prefix="outspark-bench-") as folder:
        path = Path(folder) / "profile"
        drain(run.arena, Case("bare", "row", run.plan.events, broker.name), path)
        profile = [[package, share] for package, share in shares(path)]
    run.results.profiles[broker.title] = profile
    run.step(f"{broker.name}: profile: " + ", ".join(f"{package} {share:.0%}" for package, share in profile))


def _compare(run: Run, broker: Broker, wanted: Wanted, lease: Lease) -> None:
    events = run.plan.events
    bare, spark = (Case(host, lease, events, broker.name) for host in ("bare", "spark"))
    null = Case("spark", lease, events)
    single = Case("bare", lease, run.plan.single_events, broker.name, one_by_one=True)
    cases = [bare, spark]
    cases += [null] * (wanted.of_null is not None) + [single] * (wanted.of_one_by_one is not None)
    samples = run.rounds(broker.name, cases)
    run.add_drains(broker.name, samples)
    what = f"{broker.title} on Spark, lease {lease}"

    def want(part: str, least: float | None, reached: float, unit: str) -> None:
        if least is not None:
            run.want(Target(f"{what}, {part}", "≥", least, reached, unit))

    want("of the bare lanes", wanted.of_bare, compare(samples, spark, bare), "×")
    if null in samples:
        want("of the null publisher", wanted.of_null, compare(samples, spark, null), "×")
    if single in samples:
        want("of one event at a time", wanted.of_one_by_one, compare(samples, spark, single), "×")
    want("rate", wanted.rate, median(sample.drained.rate for sample in samples[spark]), "events/s")
    want("per core that our processes use", wanted.per_core, _per_core(samples[spark]), "events/s")


def _per_core(samples: list[Sample]) -> float:
    return median(1000 / (sample.cpu_per_1000("ours") or 1) for sample in samples)
