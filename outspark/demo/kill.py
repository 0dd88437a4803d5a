"""The kill of a process that hosts a lane. Nothing is made easy: it is caught in the middle of its work.

The process is stopped first, looked at, and goes on if it has nothing in its hands; only one that is never caught with
something is killed without.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

PAUSE = 0.01
_TRIES = 200


@dataclass(frozen=True, slots=True)
class Kill:
    lane: str
    """As people call it: `lane 1`."""
    pid: int
    mid_batch: bool
    """The lane had claimed events and not settled them."""
    at: float
    """By `time.monotonic`."""
    back: Callable[[], int | None]
    """The process that hosts the lane now; None until there is one, and nothing lies where the dead one left it."""


class Mortal(Protocol):
    """Somebody whose lanes can be killed."""

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
