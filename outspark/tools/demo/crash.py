"""Crashes lanes on purpose: which processes host them, and how they are killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from outspark.tools.demo.report import Incident

_BACK_WITHIN = 30.0
_POLL = 0.02


class Crash:
    """Works in a thread of its own. `news` are milestones for the main thread to show."""

    def __init__(
        self, kind: str, victims: Callable[[], AbstractContextManager[Killable]], after: float
    ) -> None:
        """`kind` is `relay` or `inbox`; the kill comes `after` so many seconds."""
        self._kind, self._victims, self._after = kind, victims, after
        self._error: Exception | None = None
        self._incident: Incident | None = None
        self.news: SimpleQueue[tuple[str, bool]] = SimpleQueue()
        self.down: Kill | None = None
        """Until another process hosts the killed lane."""
        self._thread = threading.Thread(target=self._run, name=f"demo-crash-{kind}", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def incident(self) -> Incident | None:
        """None when no lane could be killed, or it did not come back; raises what went wrong otherwise."""
        if self._error is not None:
            raise self._error
        return self._incident

    def _run(self) -> None:
        time.sleep(self._after)
        try:
            with self._victims() as victims:
                kill = victims.kill()
                if kill is not None:
                    self._incident = self._watch(kill)
        except Exception as error:  # noqa: BLE001 - told by `incident`
            self._error = error

    def _watch(self, kill: Kill) -> Incident | None:
        self.down = kill
        where = "in the middle of a batch" if kill.mid_batch else "between two batches"
        self.news.put(
            (f"SIGKILL to worker {kill.pid}, which hosted {kill.lane} of the {self._kind}, {where}", True)
        )
        while (pid := kill.back()) is None:
            if time.monotonic() > kill.at + _BACK_WITHIN:
                return None
            time.sleep(_POLL)
        seconds = time.monotonic() - kill.at
        self.down = None
        self.news.put(
            (f"{kill.lane} of the {self._kind} works again in worker {pid}, {seconds:.1f} s later", False)
        )
        return Incident(kill.lane, kill.pid, kill.mid_batch, round(seconds, 2))


PAUSE = 0.01
_TRIES = 200


@dataclass(frozen=True, slots=True)
class Kill:
    lane: str
    """Its name for people: `lane 1`."""
    pid: int
    mid_batch: bool
    """The lane had claimed events and not settled them."""
    at: float
    """By `time.monotonic`."""
    back: Callable[[], int | None]
    """The process that hosts the lane now; None until there is one, and nothing of the killed one is left."""


class Killable(Protocol):
    """Lanes that can be killed."""

    def kill(self) -> Kill | None:
        """SIGKILL to a process that hosts a lane, in the middle of a batch; None when there was no lane."""
        ...


def catch(attempt: Callable[[bool], Kill | None]) -> Kill | None:
    """Try again and again; the last time `attempt` is told that an idle one will do."""
    for tries_left in reversed(range(_TRIES)):
        kill = attempt(tries_left == 0)
        if kill is not None:
            return kill
        time.sleep(random.uniform(0, 2 * PAUSE))
    return None


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """ProcessLookupError when it is gone already."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
