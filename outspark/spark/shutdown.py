"""Graceful shutdown of a worker process: on a signal, its lane finishes the batch and releases its slots first.

Spark's Python daemon ends its workers with SIGHUP, for instance when the JVM has exited, and a supervisor may send
SIGTERM to every process of a service. By default, both would kill a lane in the middle of a batch.
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
    """Yields a function that tells whether a shutdown was requested. `within` this time the process is killed.

    Signal handlers work in the main thread only; in any other thread the function answers False.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    requested = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        requested = True
        # SIGALRM has no handler, so the kernel kills a process that hangs, even in C code that holds the GIL.
        signal.setitimer(signal.ITIMER_REAL, max(within.total_seconds(), 0.001))

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield lambda: requested
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
