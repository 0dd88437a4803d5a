"""The results of a run: rows that were measured, targets, and whether these were reached. Written and read as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

WARM_UP = 0.3
"""Share of a soak that is left out: a JVM grows its heap step by step at first."""


@dataclass(slots=True)
class Row:
    """One way of working, measured. Rates are events a second, CPU is seconds per 1000 events, memory megabytes."""

    scenario: str
    host: str
    lease: str
    destination: str
    events: int | None = None
    rates: list[float] = field(default_factory=list)
    rate: float | None = None
    """The median of `rates`."""
    ratio: float | None = None
    """To the ceiling of the same run."""
    p50: float | None = None
    """Milliseconds from commit to publish."""
    p99: float | None = None
    cpu: float | None = None
    """Of our processes alone."""
    cpu_postgres: float | None = None
    cpu_broker: float | None = None
    memory: float | None = None
    """Peak of our processes."""
    handovers: int | None = None
    note: str = ""


@dataclass(slots=True)
class Target:
    """`reached` is to be at least or at most `wanted`."""

    name: str
    sense: Literal["≥", "≤"]
    wanted: float
    reached: float
    unit: str = ""

    @property
    def passed(self) -> bool:
        return self.reached >= self.wanted if self.sense == "≥" else self.reached <= self.wanted


@dataclass(slots=True)
class Results:
    command: str
    machine: dict[str, str]
    server: dict[str, str]
    plan: dict[str, Any]
    quick: bool = False
    rows: list[Row] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    profiles: dict[str, list[list[Any]]] = field(default_factory=dict)
    """For each broker, [package, share] of the CPU time of a bare lane that publishes to it."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Scenarios that this machine cannot run, and why."""
    curves: dict[str, list[Any]] = field(default_factory=dict)
    """For the plot: what was measured over time or as a distribution."""

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        data = asdict(self)
        data["targets"] = [{**asdict(target), "passed": target.passed} for target in self.targets]
        path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")

    def add(self, part: Results) -> None:
        """Another part of the same bench, measured on the same machine."""
        self.command = f"{self.command}`, `{part.command}"
        self.quick = self.quick or part.quick
        self.rows += part.rows
        self.targets += part.targets
        self.profiles |= part.profiles
        self.left_out |= part.left_out
        self.curves |= part.curves

    @classmethod
    def load(cls, path: Path) -> Results:
        data = json.loads(path.read_text())
        rows = [Row(**row) for row in data.pop("rows")]
        targets = [
            Target(**{k: v for k, v in target.items() if k != "passed"}) for target in data.pop("targets")
        ]
        return cls(rows=rows, targets=targets, **data)
