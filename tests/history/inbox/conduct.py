"""How the lanes of a history behave beside what their messages ask for; travels to their processes."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

Accident = Literal["die before commit", "die after commit", "refuse commit"]
"""What can happen when the broker is told: the process dies before or after, or it cannot be told at all."""


@dataclass(frozen=True, slots=True)
class Conduct:
    journal: Path
    url: str
    table: str
    seed: int = 0
    accident_rate: float = 0.0
    """The share of commits that one of the accidents happens to."""
    once: Accident | None = None
    """What happens to the first commit of all."""
    die_on_revoke: bool = False
    """Whoever is the first that Kafka takes partitions from dies of it."""

    @property
    def hold(self) -> Path:
        """While this file is there, nobody tells the broker anything."""
        return self.journal.with_suffix(".hold")

    def is_first(self, what: str) -> bool:
        """True once, for whichever process asks first."""
        try:
            os.close(os.open(self.journal.with_suffix(f".{what.replace(' ', '-')}"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody survives that")
