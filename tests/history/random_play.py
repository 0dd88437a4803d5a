"""A random history from a seed: writers, failures, poison, outages, kills, stops, hand-overs, all at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from tests.history.publisher import Behaviour
from tests.history.stage import Draft, Stage, Transaction
from tests.waiting import wait_for

WRITERS = 3
MISHAPS = ("kill", "kill", "restart", "outage")


@dataclass(slots=True)
class RandomPlay:
    """`poison` events and as many that die are spread among the plain ones."""

    stage: Stage
    rng: random.Random
    events: int = 700
    keys: int = 24
    poison: int = 2
    pace: float = 0.01
    _open: list[Transaction] = field(default_factory=list)

    def play(self, finish: Callable[[], None] = lambda: None, timeout: float = 60.0) -> None:
        """Write the events while things go wrong, then let all be delivered and stop the relays."""
        stage, behaviours = self.stage, self._behaviours()
        total = len(behaviours)
        at = {self.rng.randrange(total // 6, total): mishap for mishap in MISHAPS}
        while behaviours:
            if mishap := at.pop(len(behaviours), None):
                self._mishap(mishap)
            self._write(behaviours)
            self._wait(self.pace)
        for transaction in self._open:
            stage.commit(transaction)
        stage.conduct.outage.unlink(missing_ok=True)
        wait_for(self._finished, timeout=timeout, what="the end of the backlog")
        finish()
        for relay in stage.relays:
            relay.stop()

    def _behaviours(self) -> list[Behaviour]:
        special = [Behaviour.POISON, Behaviour.DIE] * self.poison + [Behaviour.SKIP, Behaviour.KILL_AFTER]
        behaviours = [Behaviour.PASS] * (self.events - len(special)) + special
        self.rng.shuffle(behaviours)
        return behaviours

    def _write(self, behaviours: list[Behaviour]) -> None:
        """Begin, or end, one of a few transactions that are open side by side."""
        if len(self._open) < WRITERS and self.rng.random() < 0.6:
            transaction = self.stage.begin()
            self._open.append(transaction)
            size = 40 if self.rng.random() < 0.1 else self.rng.randint(1, 6)
            count = min(size, len(behaviours))
            transaction.write([self._draft(behaviours.pop()) for _ in range(count)])
        elif self._open:
            transaction = self._open.pop(self.rng.randrange(len(self._open)))
            plain = all(event.behaviour is Behaviour.PASS for event in transaction.written)
            if plain and self.rng.random() < 0.15:
                self.stage.roll_back(transaction)
            else:
                self.stage.commit(transaction)

    def _draft(self, behaviour: Behaviour) -> Draft:
        taken = set().union(*(transaction.keys for transaction in self._open))
        free = [key for number in range(self.keys) if (key := f"key-{number}") not in taken]
        key = None if self.rng.random() < 0.1 else self.rng.choice(free)
        delay = timedelta(milliseconds=self.rng.randint(50, 1000)) if self.rng.random() < 0.05 else None
        return Draft(key, behaviour, delay)

    def _mishap(self, mishap: str) -> None:
        relay = self.rng.choice(self.stage.relays)
        match mishap:
            case "kill":
                relay.kill(self.rng.randrange(relay.settings.relay.lanes))
            case "restart":
                relay.stop()
            case "outage":
                self.stage.conduct.outage.touch()
                self._wait(0.5)
                self.stage.conduct.outage.unlink()

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        wait_for(lambda: self.stage.tick() or time.monotonic() >= end, timeout=seconds + 10)

    def _finished(self) -> bool:
        self.stage.tick()
        return self.stage.finished()
