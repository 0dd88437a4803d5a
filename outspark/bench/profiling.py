"""Where the CPU time of a lane goes, by package: the limit of a lane that is not waiting for anybody."""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_Function = tuple[str, int, str]
_BUILT_IN = "~"


def profiled(work: Callable[[], object], path: Path) -> None:
    """Run `work` with a profiler on CPU time, in this thread and in those it starts, and write what it saw."""
    profiles = [cProfile.Profile(time.thread_time)]

    def attach(*_: object) -> None:
        sys.setprofile(None)
        profile = cProfile.Profile(time.thread_time)
        # From Python 3.12 on one profiler sees all threads, and a second one is refused.
        with suppress(ValueError):
            profile.enable()
            profiles.append(profile)

    threading.setprofile(attach)
    try:
        profiles[0].runcall(work)
    finally:
        threading.setprofile(None)
        pstats.Stats(*profiles).dump_stats(path)


def shares(path: Path, at_least: float = 0.02) -> list[tuple[str, float]]:
    """Share of the time spent in each package's own code, largest first; C functions count for their caller."""
    spent: defaultdict[str, float] = defaultdict(float)
    # The documented way to print hides the numbers, which typeshed leaves out.
    stats: dict[_Function, tuple[int, int, float, float, dict[_Function, tuple[int, int, float, float]]]]
    stats = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
    # What another thread was in the middle of when the profiler stopped is closed by the wrong thread's clock, and
    # comes out below zero.
    for (file, _, _), (_, _, own, _, callers) in stats.items():
        if file != _BUILT_IN:
            spent[_package(file)] += max(own, 0.0)
        else:
            for (caller, _, _), (_, _, part, _) in callers.items():
                spent[_package(caller)] += max(part, 0.0)
    whole = sum(spent.values()) or 1
    ranked = sorted(((own / whole, name) for name, own in spent.items()), reverse=True)
    large = [(name, share) for share, name in ranked if share >= at_least]
    return [*large, ("everything else", 1 - sum(share for _, share in large))]


def _package(file: str) -> str:
    """`…/site-packages/nats/aio/client.py` is nats, `…/outspark/relay/loop.py` is outspark.relay."""
    parts = Path(file).parts
    if "outspark" in parts:
        inner = parts[len(parts) - parts[::-1].index("outspark") :]
        return ".".join(("outspark", inner[0].removesuffix(".py")))
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1].removesuffix(".py")
    return Path(file).parent.name if Path(file).parent.name == "asyncio" else "Python's own library"
