"""CPU time and memory of groups of processes with all their children, read once a second and at both ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import psutil  # type: ignore[import-untyped]

INTERVAL = 1.0
MEGABYTE = 1_000_000


@dataclass(slots=True)
class Usage:
    """CPU seconds since the meter started, and resident megabytes (shared pages counted in each process)."""

    cpu: float = 0.0
    memory: list[tuple[float, float]] = field(default_factory=list)
    """(seconds since the start, megabytes)"""

    @property
    def peak(self) -> float:
        return max((megabytes for _, megabytes in self.memory), default=0.0)


class Meter:
    """`with Meter({"ours": pids}) as meter: ...`, then `meter.usage["ours"]`."""

    def __init__(self, roots: Mapping[str, Sequence[int]]) -> None:
        self.usage = {name: Usage() for name in roots}
        self._roots = {name: [psutil.Process(pid) for pid in pids] for name, pids in roots.items()}
        self._cpu: dict[str, dict[psutil.Process, float]] = {name: {} for name in roots}
        self._before: dict[str, dict[psutil.Process, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bench-meter", daemon=True)

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._sample()
        self._before = {name: dict(seen) for name, seen in self._cpu.items()}
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()
        self._sample()
        self.seconds = time.monotonic() - self._started
        for name, seen in self._cpu.items():
            before = self._before[name]
            self.usage[name].cpu = sum(cpu - before.get(process, 0.0) for process, cpu in seen.items())

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL):
            self._sample()

    def _sample(self) -> None:
        now = time.monotonic() - self._started
        for name, roots in self._roots.items():
            memory = sum(self._read(name, process) for process in _trees(roots))
            self.usage[name].memory.append((now, memory / MEGABYTE))

    def _read(self, name: str, process: psutil.Process) -> int:
        """Resident bytes; the CPU time is kept, so that it still counts when the process has ended."""
        try:
            with process.oneshot():
                times = process.cpu_times()
                self._cpu[name][process] = times.user + times.system
                return int(process.memory_info().rss)
        except psutil.NoSuchProcess:
            return 0


def suspend(pid: int) -> None:
    """Stop a process and its children as they are, parents first, so that no new child is missed."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        process.suspend()
        for child in process.children():
            suspend(child.pid)


def resume(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        for process in reversed(_trees([psutil.Process(pid)])):
            with suppress(psutil.NoSuchProcess):
                process.resume()


def _trees(roots: Sequence[psutil.Process]) -> list[psutil.Process]:
    found = []
    for root in roots:
        try:
            found += [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return found
