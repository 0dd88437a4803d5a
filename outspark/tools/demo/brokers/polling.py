"""A thread that reads a broker whose client has to be asked again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class Polling:
    """Calls `poll` from construction to `stop`; one call takes no longer than a fraction of a second."""

    def __init__(self, poll: Callable[[], None]) -> None:
        self._poll = poll
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="demo-consumer")
        self._work = self._pool.submit(self._run)

    def check(self) -> None:
        """Raises what ended it."""
        if self._work.done():
            self._work.result()

    def stop(self) -> None:
        self._stopping.set()
        self._pool.shutdown()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._poll()
