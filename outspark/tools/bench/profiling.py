"""Where the CPU time of a lane goes, by package: the limit of a lane that does not wait for its broker."""

from __future__ import annotations

import cProfile
import json
import pstats
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

NATIVE = "threads of C libraries"

_Function = tuple[str, int, str]
_BUILT_IN = "~"


def profiled(work: Callable[[], object], path: Path) -> None:
    """Run `work` with a profiler on CPU time, in this thread and in those it starts, and write what it saw.

    Threads that a C library starts are not Python's to profile; the system says what they took.
    """
    profiles = [cProfile.Profile(time.thread_time)]

    def attach(*_: object) -> None:
        sys.setprofile(None)
        profile = cProfile.Profile(time.thread_time)
        # From Python 3.12 on one profiler sees all threads, and a second one is refused.
        with suppress(ValueError):
            profile.enable()
            profiles.append(profile)

    before = _cpu_of_threads()
    threading.setprofile(attach)
    try:
        profiles[0].runcall(work)
    finally:
        threading.setprofile(None)
        native = _native_share(before)
        spent = {name: own * (1 - native) for name, own in _by_package(pstats.Stats(*profiles)).items()}
        path.write_text(json.dumps({**spent, NATIVE: native}))


def shares(path: Path, at_least: float = 0.02) -> list[tuple[str, float]]:
    """Share of the time spent in each package's own code, largest first; what is small comes together at the end."""
    spent: dict[str, float] = json.loads(path.read_text())
    ranked = sorted(((share, name) for name, share in spent.items()), reverse=True)
    large = [(name, share) for share, name in ranked if share >= at_least]
    return [*large, ("everything else", 1 - sum(share for _, share in large))]


def _by_package(profile: pstats.Stats) -> dict[str, float]:
    """Package -> its share of what the profiler saw. C functions count for their caller."""
    spent: defaultdict[str, float] = defaultdict(float)
    # The documented way to print hides the numbers, which typeshed leaves out.
    stats: dict[_Function, tuple[int, int, float, float, dict[_Function, tuple[int, int, float, float]]]]
    stats = profile.stats  # type: ignore[attr-defined]
    # What another thread was in the middle of when the profiler stopped is closed by the wrong thread's clock, and
    # comes out below zero.
    for (file, _, _), (_, _, own, _, callers) in stats.items():
        if file != _BUILT_IN:
            spent[_package(file)] += max(own, 0.0)
        else:
            for (caller, _, _), (_, _, part, _) in callers.items():
                spent[_package(caller)] += max(part, 0.0)
    whole = sum(spent.values()) or 1
    return {name: own / whole for name, own in spent.items()}


def _native_share(before: dict[int, float]) -> float:
    """Of the CPU time of this process since then, what went to threads that Python does not know."""
    spent = {thread: cpu - before.get(thread, 0.0) for thread, cpu in _cpu_of_threads().items()}
    ours = {thread.native_id for thread in threading.enumerate()}
    native = sum(cpu for thread, cpu in spent.items() if thread not in ours)
    return native / (sum(spent.values()) or 1)


def _cpu_of_threads() -> dict[int, float]:
    return {thread.id: thread.user_time + thread.system_time for thread in psutil.Process().threads()}


def _package(file: str) -> str:
    """`…/site-packages/nats/aio/client.py` is nats, `…/outspark/relay/loop.py` is outspark.relay."""
    parts = Path(file).parts
    if "outspark" in parts:
        inner = parts[len(parts) - parts[::-1].index("outspark") :]
        return ".".join(("outspark", inner[0].removesuffix(".py")))
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1].removesuffix(".py")
    return Path(file).parent.name if Path(file).parent.name == "asyncio" else "Python's own library"
