"""A random history from a seed: writers, failures, poison, outages, kills, stops, hand-overs, all at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from tests.history.broker_outage import BrokerOutage
from tests.history.harness import Harness
from tests.history.publisher import Behaviour
from tests.history.tables import Draft, Transaction
from tests.waiting import wait_for

WRITERS = 3
KEYS = [f"key-{number}" for number in range(24)]
KEYS_OF_ONE = 6
"""Keys that one transaction may write to, so that its neighbours find free ones."""
TYPES = [f"type-{number}" for number in range(WRITERS)]
"""Each transaction has one to itself, because events without a key may be in order with their type."""
MOST_IMMEDIATE = 2
"""Of one transaction, because the relay waits for its writer in proportion to them."""

HARMLESS = (Behaviour.DIE, Behaviour.DIE, Behaviour.SKIP, Behaviour.KILL_AFTER)
SPECIAL = (*HARMLESS, Behaviour.POISON, Behaviour.POISON)
MISHAPS = ("kill", "kill", "restart", "outage")
MISHAPS_WITH_BROKER = ("kill", "kill", "restart", "broker stop", "broker kill")
# A broker that goes away must find lanes at work.
_FEWEST_LEFT = {"broker stop": 100, "broker kill": 100}


@dataclass(slots=True)
class RandomPlay:
    """`special` events are spread among the plain ones."""

    harness: Harness
    rng: random.Random
    events: int = 600
    special: Sequence[Behaviour] = SPECIAL
    pace: float = 0.01
    mishaps: Sequence[str] = MISHAPS
    delayed: float = 0.05
    """The share of events that are scheduled for later."""
    immediate: float = 0.0
    """The share of plain events that their writer sends itself, if it does not die first."""
    _open: list[Transaction] = field(default_factory=list)
    _outage: BrokerOutage | None = None

    def play(self) -> None:
        """Write the events while things go wrong, then let all be delivered and stop the relays."""
        behaviours = self._behaviours()
        mishaps = self._mishaps(len(behaviours))
        while behaviours:
            if mishaps and len(behaviours) <= mishaps[-1][0]:
                self._mishap(mishaps.pop()[1])
            self._write(behaviours)
            self._wait(self.pace)
        for transaction in self._open:
            self.harness.commit(transaction)
        self._end_outage()
        wait_for(self._ticking(self.harness.finished), timeout=60, what="the end of the backlog")
        for relay in self.harness.relays:
            relay.stop()

    def _behaviours(self) -> list[Behaviour]:
        behaviours = [*[Behaviour.PASS] * (self.events - len(self.special)), *self.special]
        self.rng.shuffle(behaviours)
        return behaviours

    def _mishaps(self, events: int) -> list[tuple[int, str]]:
        """Each with the number of events that are still to be written then; the last one comes first."""
        return sorted(
            (self.rng.randrange(_FEWEST_LEFT.get(mishap, 0), events), mishap) for mishap in self.mishaps
        )

    def _write(self, behaviours: list[Behaviour]) -> None:
        """Begin, or end, one of a few transactions that are open side by side."""
        if len(self._open) < WRITERS and self.rng.random() < 0.6:
            size = 40 if self.rng.random() < 0.1 else self.rng.randint(1, 6)
            chosen = [behaviours.pop() for _ in range(min(size, len(behaviours)))]
            drafts = self._drafts(chosen)
            transaction = self.harness.begin()
            self._open.append(transaction)
            transaction.write(drafts)
        elif self._open:
            transaction = self._open.pop(self.rng.randrange(len(self._open)))
            plain = all(event.behaviour is Behaviour.PASS for event in transaction.written)
            if plain and self.rng.random() < 0.15:
                self.harness.roll_back(transaction)
            else:
                self.harness.commit(transaction)

    def _drafts(self, behaviours: Sequence[Behaviour]) -> list[Draft]:
        taken = set().union(*(transaction.keys for transaction in self._open))
        keys = self.rng.sample([key for key in KEYS if key not in taken], KEYS_OF_ONE)
        type = self.rng.choice([type for type in TYPES if type not in self._taken_types()])
        abandoned = self.rng.random() < 0.3
        immediate = 0
        drafts = []
        for behaviour in behaviours:
            at_once = behaviour is Behaviour.PASS and self.rng.random() < self.immediate
            immediate += at_once
            draft = Draft(
                key=None if self.rng.random() < 0.1 else self.rng.choice(keys),
                behaviour=behaviour,
                delay=self._delay() if self.rng.random() < self.delayed else None,
                type=type,
            )
            if at_once and immediate <= MOST_IMMEDIATE:
                draft = replace(draft, immediate=True, abandoned=abandoned)
            drafts.append(draft)
        return drafts

    def _taken_types(self) -> set[str]:
        return set().union(*(transaction.types for transaction in self._open))

    def _delay(self) -> timedelta:
        return timedelta(milliseconds=self.rng.randint(50, 1000))

    def _mishap(self, mishap: str) -> None:
        relay = self.rng.choice(self.harness.relays)
        match mishap:
            case "kill":
                relay.kill(self.rng.randrange(relay.lanes))
            case "restart":
                relay.stop()
            case "outage":
                self.harness.conduct.outage.touch()
                self._wait(0.5)
                self.harness.conduct.outage.unlink()
            case "broker stop" | "broker kill":
                self._end_outage()
                self._outage = BrokerOutage(self.harness, kill=mishap == "broker kill")

    def _end_outage(self) -> None:
        """What goes wrong with the broker takes long, so all else goes on meanwhile; only the next one waits for it."""
        if self._outage is not None:
            self._outage.hurry()
            wait_for(self._ticking(self._outage.over), timeout=120, what="the broker's return")
            self._outage = None

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        wait_for(self._ticking(lambda: time.monotonic() >= end), timeout=seconds + 10)

    def _ticking(self, condition: Callable[[], bool]) -> Callable[[], bool]:
        def ticking() -> bool:
            self.harness.tick()
            return condition()

        return ticking
