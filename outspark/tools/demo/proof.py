"""The proof of the demo: what the shop committed and rolled back, against what arrived. No I/O here."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Fact:
    """One event on either side; `number` is its position among the events of its key."""

    id: str
    key: str
    number: int


@dataclass(frozen=True, slots=True)
class Proof:
    committed: int
    rolled_back: int
    keys: int
    arrived: int
    """Different events; how often each came does not count here."""
    lost: tuple[Fact, ...]
    """Committed, and never arrived."""
    undone: tuple[str, ...]
    """Rolled back, and arrived all the same."""
    unknown: tuple[str, ...]
    """Arrived, but the shop did not write it."""
    altered: tuple[Fact, ...]
    """Arrived with another key or number than it was committed with."""
    overtaken: tuple[tuple[Fact, Fact], ...]
    """A later event of a key, and the earlier one that arrived after it."""
    twice: tuple[str, ...]
    """Arrived more than once, which at-least-once delivery allows: reported, but no fault."""

    @property
    def holds(self) -> bool:
        """False as well when nothing was written, which would prove nothing."""
        faults = (self.lost, self.undone, self.unknown, self.altered, self.overtaken)
        return self.committed > 0 and not any(faults)


def prove(committed: Iterable[Fact], rolled_back: Iterable[str], arrivals: Iterable[Fact]) -> Proof:
    """`arrivals` in the order of arrival at the consumer; the first arrival of an event counts for order."""
    written = {fact.id: fact for fact in committed}
    undone = frozenset(rolled_back)
    came = list(arrivals)
    times = Counter(fact.id for fact in came)
    return Proof(
        committed=len(written),
        rolled_back=len(undone),
        keys=len({fact.key for fact in written.values()}),
        arrived=len(times),
        lost=tuple(fact for fact in written.values() if fact.id not in times),
        undone=tuple(id for id in times if id in undone),
        unknown=tuple(id for id in times if id not in written and id not in undone),
        altered=tuple(fact for fact in came if fact.id in written and fact != written[fact.id]),
        overtaken=_overtaken(written[id] for id in times if id in written),
        twice=tuple(id for id, count in times.items() if count > 1),
    )


def _overtaken(first_arrivals: Iterable[Fact]) -> tuple[tuple[Fact, Fact], ...]:
    by_key: dict[str, list[Fact]] = defaultdict(list)
    for fact in first_arrivals:
        by_key[fact.key].append(fact)
    return tuple(
        (earlier, later)
        for facts in by_key.values()
        for earlier, later in pairwise(facts)
        if earlier.number >= later.number
    )
