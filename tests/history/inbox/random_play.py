"""Plays a random history of an inbox: messages of all kinds, some more than once, while things go wrong."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from outspark.config.inbox import Strategy
from outspark.contracts.omnibox.inbox_maintenance import InboxMaintenance
from outspark.database.names import TableName
from tests.history.inbox.brokers import PARTITIONS
from tests.history.inbox.drafts import Behaviour, Draft, Kind, uuid7_of
from tests.history.inbox.harness import Harness

KEYS = [f"key-{number}" for number in range(6)]
LONG_AGO, FAR_AHEAD = timedelta(days=400), timedelta(days=-400)

SPECIAL = (
    Behaviour.FAIL_FIRST,
    Behaviour.FAIL_FIRST,
    Behaviour.NOT_NOW_FIRST,
    Behaviour.ABORT_FIRST,
    Behaviour.COMMIT_FIRST,
    Behaviour.HANG_FIRST,
    Behaviour.KILL_FIRST,
    Behaviour.UNLOCK_FIRST,
    Behaviour.REFUSE_FIRST,
    Behaviour.DIE,
    Behaviour.REJECT,
    Behaviour.BROKEN,
    Behaviour.STRAY,
    Behaviour.STRAY,
)
DEADLY = (*SPECIAL, Behaviour.POISON, Behaviour.KILL_FIRST, Behaviour.KILL_FIRST)
TWINS = 3
MISHAPS = ("kill take", "kill work", "kill work", "unlock", "restart")
MISHAPS_WITH_CUT = (*MISHAPS, "cut")
# Its completion comes before its handler, so it would be nobody's failure, and be refused for ever.
NOT_AT_MOST_ONCE = (Behaviour.REFUSE_FIRST,)


@dataclass(slots=True)
class RandomPlay:
    """`special` messages are spread among the plain ones."""

    harness: Harness
    rng: random.Random
    messages: int = 70
    special: Sequence[Behaviour] = SPECIAL
    mishaps: Sequence[str] = MISHAPS
    again: float = 0.3
    """The share of messages that are published once more, later."""
    pace: float = 0.08

    def play(self) -> None:
        """Publish while things go wrong, then let all come to its end."""
        drafts = self._drafts()
        mishaps = sorted((self.rng.randrange(1, len(drafts)), mishap) for mishap in self.mishaps)
        self._publish([drafts.pop() for _ in range(4)])
        # What goes wrong must find lanes at work.
        self.harness.wait_for(lambda: self.harness.did("begun"), timeout=60, what="the first handler")
        while drafts:
            if mishaps and len(drafts) <= mishaps[-1][0]:
                self._mishap(mishaps.pop()[1])
            burst = [drafts.pop() for _ in range(min(self.rng.randint(1, 8), len(drafts)))]
            self._publish(burst)
            self._wait()
        self.harness.finish()

    def _publish(self, burst: Sequence[Draft]) -> None:
        self.harness.publish(*burst)
        known = [draft for draft in self.harness.published.values() if draft.id is not None]
        if known and self.rng.random() < self.again * len(burst):
            # In order, one key is in one partition; otherwise a copy may overtake its original elsewhere.
            ordered = self.harness.rules.ordering == "key"
            self.harness.publish(
                self.rng.choice(known), partition=None if ordered else self.rng.randrange(PARTITIONS)
            )

    def _drafts(self) -> list[Draft]:
        special = [one for one in self.special if not self._is_left_out(one)]
        behaviours = [*[Behaviour.PASS] * (self.messages - len(special) - 2 * TWINS), *special]
        drafts = [self._draft(number, behaviour) for number, behaviour in enumerate(behaviours)]
        for pair in range(TWINS):
            drafts += [self._twin(len(drafts) + n, f"paid-{pair}") for n in range(2)]
        self.rng.shuffle(drafts)
        return drafts

    def _is_left_out(self, behaviour: Behaviour) -> bool:
        return self.harness.rules.strategy is Strategy.AT_MOST_ONCE and behaviour in NOT_AT_MOST_ONCE

    def _draft(self, number: int, behaviour: Behaviour) -> Draft:
        key = None if self.rng.random() < 0.2 else self.rng.choice(KEYS)
        draft = Draft(f"m{number}", behaviour, key, self._id(number), kind=self._kind(behaviour))
        if behaviour is Behaviour.STRAY:
            return replace(draft, id=uuid7_of(number, self.rng.choice([LONG_AGO, FAR_AHEAD])))
        return draft

    def _twin(self, number: int, idempotency_key: str) -> Draft:
        return Draft(f"m{number}", id=self._id(number) or f"order-{number}", idempotency_key=idempotency_key)

    def _id(self, number: int) -> str | None:
        """One that says when it was made, one that does not, or none."""
        return self.rng.choice([uuid7_of(number), uuid7_of(number), f"order-{number}", None])

    def _kind(self, behaviour: Behaviour) -> Kind:
        if behaviour is Behaviour.HANG_FIRST:
            return self.rng.choice(["slow", "async"])
        return "async" if self.rng.random() < 0.2 else "sync"

    def _mishap(self, mishap: str) -> None:
        host = self.harness.host
        match mishap:
            case "kill take":
                host.kill(self.rng.choice(host.lanes("consume")))
            case "kill work":
                host.kill(self.rng.choice(host.lanes("handle")))
            case "restart":
                host.stop()
            case "cut":
                self.harness.cut()
            case "unlock":
                self._unlock()

    def _unlock(self) -> None:
        """Take away what workers have in their hands at this moment."""
        locked = self.harness.ask("SELECT id::text FROM {table} WHERE locked_at IS NOT NULL LIMIT 3")
        table = TableName.parse(self.harness.conduct.table).within("public")
        with self.harness.database.connect() as conn:
            InboxMaintenance(table).unlock(conn, [id for (id,) in locked], "on purpose")

    def _wait(self) -> None:
        end = time.monotonic() + self.pace
        self.harness.wait_for(lambda: time.monotonic() >= end)
