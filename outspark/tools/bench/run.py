"""One run of the bench: its server, its results so far, and what the bench prints while it works."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol, TypeVar

from rich.progress import Progress, TaskID

from outspark.errors import ExtraMissing, ServerStartError
from outspark.tools.bench.drain import Case, Sample, Stand
from outspark.tools.bench.plan import Plan
from outspark.tools.bench.results import Results, Row, Target
from outspark.tools.bench.servers import Arena
from outspark.tools.bench.tables import Table
from outspark.tools.brokers import Broker, BrokerName

C = TypeVar("C", bound=Hashable)


class Drains(Protocol):
    """A stand, which can be drained again and again."""

    def drain(self) -> Sample: ...


@dataclass(slots=True)
class Run:
    arena: Arena
    results: Results
    progress: Progress
    ceilings: dict[Table, float] = field(default_factory=dict)
    """Median rate of each table's ceiling, once it is known."""
    _task: TaskID | None = None

    @property
    def plan(self) -> Plan:
        return self.arena.plan

    def begin(self, scenario: str, steps: int) -> None:
        self._task = self.progress.add_task(scenario, total=steps)

    def step(self, what: str) -> None:
        """One more measurement is done; `what` says how it went."""
        self.progress.console.print(what, highlight=False, soft_wrap=True)
        if self._task is not None:
            self.progress.advance(self._task)

    def rounds(
        self, scenario: str, cases: Sequence[Case], rounds: int | None = None
    ) -> dict[Case, list[Sample]]:
        return self.take_turns(scenario, {case: Stand(self.arena, case) for case in cases}, rounds)

    def take_turns(
        self,
        scenario: str,
        stands: Mapping[C, AbstractContextManager[Drains]],
        rounds: int | None = None,
    ) -> dict[C, list[Sample]]:
        """Drain every case once a round, taking turns: what else the machine does affects all of them alike.

        Before the first round each has a drain that does not count, because a JVM that has just started is slow.
        """
        rounds = rounds or self.plan.rounds
        self.begin(scenario, (1 + rounds) * len(stands))
        samples: dict[C, list[Sample]] = {case: [] for case in stands}
        with ExitStack() as stack:
            up = {case: stack.enter_context(stand) for case, stand in stands.items()}
            for number in range(1 + rounds):
                for case, stand in up.items():
                    sample = stand.drain()
                    if number:
                        samples[case].append(sample)
                    says = f"{scenario}: {case}: {sample.drained.rate:,.0f} events/s"
                    self.step(says if number else f"{says} (warm-up)")
        return samples

    def add(self, row: Row) -> None:
        self.results.rows.append(row)

    def add_drains(self, scenario: str, samples: dict[Case, list[Sample]]) -> None:
        for case, drains in samples.items():
            ceiling = self.ceilings.get(case.table)
            note = _note(case, drains[-1])
            self.add(row(scenario, case.host, case.lease, case.to, drains, ceiling, note))

    def leave_out(self, scenario: str, reason: str) -> None:
        """One line instead of a measurement that this machine cannot make."""
        line = " ".join(reason.split())
        self.results.left_out[scenario] = line
        self.progress.console.print(f"{scenario}: left out: {line}", highlight=False, soft_wrap=True)

    @contextmanager
    def broker(self, name: BrokerName, scenario: str) -> Iterator[Broker | None]:
        """None, and a note that the scenario is left out, where this machine cannot run the broker."""
        with ExitStack() as stack:
            broker: Broker | None = None
            try:
                broker = stack.enter_context(self.arena.broker(name))
            except (ExtraMissing, ServerStartError) as error:
                self.leave_out(scenario, str(error))
            yield broker

    def want(self, target: Target) -> None:
        self.results.targets.append(target)
        result = "reached" if target.passed else "missed"
        self.progress.console.print(
            f"{target.name}: {target.reached:.3g} {target.unit} ({target.sense} {target.wanted:g}: {result})",
            highlight=False,
            soft_wrap=True,
        )


def compare(samples: Mapping[C, list[Sample]], one: C, other: C) -> float:
    """The ratio of their median rates."""
    return median_rate(samples[one]) / median_rate(samples[other])


def median_rate(drains: Sequence[Sample]) -> float:
    return median(sample.drained.rate for sample in drains)


def row(
    scenario: str,
    host: str,
    lease: str,
    destination: str,
    drains: Sequence[Sample],
    ceiling: float | None,
    note: str,
) -> Row:
    rate = median_rate(drains)
    return Row(
        scenario=scenario,
        host=host,
        lease=lease,
        destination=destination,
        events=drains[-1].drained.events,
        rates=[sample.drained.rate for sample in drains],
        rate=rate,
        ratio=rate / ceiling if ceiling else None,
        cpu=_median(sample.cpu_per_1000("ours") for sample in drains),
        cpu_postgres=_median(sample.cpu_per_1000("postgres") for sample in drains),
        cpu_broker=_median(sample.cpu_per_1000("broker") for sample in drains),
        memory=max(sample.usage["ours"].peak for sample in drains) or None,
        handovers=sum(sample.handovers for sample in drains),
        note=note,
    )


def _note(case: Case, sample: Sample) -> str:
    if case.finished:
        return f"{case.finished:,} finished rows" + f", {case.table.note}" * bool(case.table.note)
    if case.between != "nothing":
        other = "for a destination that is down" if case.between == "stuck" else "that are delivered"
        return f"between {case.events:,} events {other}"
    return sample.cores_used() if case.destination != "null" or case.table.inbox else case.table.note


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
