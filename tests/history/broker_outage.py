"""A broker that goes away and comes back, while a play goes on: servers take seconds for that."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from tests.history.harness import Harness
from tests.history.journal import Deed, Journal
from tests.waiting import wait_for

NOTICE_TIMEOUT = 60.0


class BrokerOutage:
    """Begins at once. The broker comes back when a lane has noticed, or when it is hurried; the outage is over when a
    lane has noticed that too, or has nothing left to send."""

    def __init__(self, harness: Harness, *, kill: bool) -> None:
        self._stage = harness
        self._hurried = threading.Event()
        pool = ThreadPoolExecutor(1)
        self._future = pool.submit(self._run, kill)
        pool.shutdown(wait=False)

    def hurry(self) -> None:
        self._hurried.set()

    def over(self) -> bool:
        """Raises what went wrong with the broker."""
        return self._future.done() and self._future.result() is None

    def _run(self, kill: bool) -> None:
        with closing(Journal(self._stage.conduct.journal)) as journal:
            start = journal.size
            self._stage.end_broker(kill)
            wait_for(lambda: self._hurried.is_set() or _has(journal, start, "down"), timeout=NOTICE_TIMEOUT)
            start = journal.size
            self._stage.start_broker()
            wait_for(lambda: self._stage.finished() or _has(journal, start, "acked"), timeout=NOTICE_TIMEOUT)


def _has(journal: Journal, start: int, deed: Deed) -> bool:
    return any(entry.deed == deed for entry in journal.read(start))
