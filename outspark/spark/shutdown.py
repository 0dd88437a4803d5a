"""A lane's process is told to end: the lane finishes its batch and gives its slots back first.

Spark's Python daemon ends its workers with SIGHUP, for instance when the JVM is gone, and a supervisor may send SIGTERM
to every process of a service. Both would end a lane in the middle of a batch.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def watch_for_shutdown(within: timedelta) -> Iterator[Callable[[], bool]]:
    """Gives a question: has this process been told to end? One that has not ended `within` this time is ended."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    requested = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        requested = True
        # Nobody handles SIGALRM, so the kernel ends what hangs.
        signal.setitimer(signal.ITIMER_REAL, max(within.total_seconds(), 0.001))

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield lambda: requested
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
