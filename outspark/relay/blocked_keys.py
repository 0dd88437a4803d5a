"""Which keys must not be claimed now: their head waits for its next try or for a breaker, or they are parked.

Only an optimisation of what the table says: a lane that restarts builds it again. This class alone changes that state.
Others tell it what happened (`settled`, `slots_begun`, `breaker_closed`, ...) and ask what is blocked.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NewType

from outspark.contracts.relay_statements import KeyInBackoff
from outspark.delivery.destination import Block
from outspark.event import Event
from outspark.relay.handover import DestinationBacklog
from outspark.relay.settlements import Unfinished

MOST_PROBES = 10
"""Events that are remembered for probing what is closed: one of them may be at fault itself."""

Moment = NewType("Moment", int)
"""A moment that `BlockedKeys.freed_since` can be asked about."""
AT_FIRST = Moment(0)


@dataclass(slots=True)
class BlockedKeys:
    ordered: bool = True
    """Do keys count?"""
    parks: bool = False
    """Does a dead event hold back the later events of its key?"""
    _heads: dict[str, tuple[str, float]] = field(default_factory=dict)
    """key -> (its head, when the head may be tried again on the monotonic clock)"""
    _down: dict[Block, set[str]] = field(default_factory=dict)
    """What is closed -> keys that wait for it"""
    _down_types: dict[Block, set[str]] = field(default_factory=dict)
    """What is closed -> types of events without a key that wait for it"""
    _down_topics: dict[Block, set[tuple[str, str]]] = field(default_factory=dict)
    """What is closed -> topics, as their rows name them, and types of events without a key that wait for it"""
    _probes: dict[Block, dict[str, None]] = field(default_factory=dict)
    """What is closed -> some events that wait for it, in the order in which they are to probe it"""
    _parked: set[str] = field(default_factory=set)
    _version: int = 0
    """Rises whenever something stops being blocked, or slots bring rows of their own."""

    # What happened.

    def settled(self, delivered: Sequence[Event], unfinished: Sequence[Unfinished]) -> None:
        """A batch was settled."""
        for one in unfinished:
            self._settled_unfinished(one)
        # After the failures: a delivered event must not free its key for a later event of the batch that failed.
        for event in delivered if self._heads else ():
            self._free(event.order_key, event.id)

    def slots_begun(self, heads: Iterable[KeyInBackoff]) -> None:
        """The lane began to work on slots with these heads. They may hold older events than the last claim."""
        now = time.monotonic()
        self._version += 1
        for one in heads:
            self._heads[one.key] = (one.head, now + one.seconds)

    def slots_left(self) -> None:
        for waiting in (self._down, self._down_types, self._down_topics, self._probes):
            waiting.clear()
        self._heads.clear()
        self._parked.clear()

    def dead_found(self, keys: set[str]) -> None:
        """These keys, and no others, stand behind a dead event."""
        self._version += not self._parked <= keys
        self._parked = keys

    def died(self, key: str | None) -> None:
        """An event of this key died."""
        if key is not None and self.ordered and self.parks:
            self._parked.add(key)

    def head_gone(self, key: str, head: str) -> None:
        """The head waits no more: another session settled or discarded it."""
        self._free(key, head)

    def probe_gone(self, block: Block, event: str) -> None:
        """The event waits no more: another session settled or discarded it."""
        self._probes.get(block, {}).pop(event, None)

    def breaker_closed(self, block: Block) -> None:
        """Events that waited for this may go on."""
        for waiting in (self._down, self._down_types, self._down_topics, self._probes):
            waiting.pop(block, None)
        self._version += 1

    def inherited(self, block: Block, backlog: DestinationBacklog) -> None:
        """Another lane noted what waits. Only lanes with an order leave notes, so they contain no topics."""
        if backlog.probes:
            self._probes[block] = dict.fromkeys(backlog.probes)
        if backlog.keys:
            self._down.setdefault(block, set()).update(backlog.keys)
        if backlog.types:
            self._down_types.setdefault(block, set()).update(backlog.types)

    # What is blocked now.

    def __contains__(self, key: str) -> bool:
        return key in self._heads or key in self._parked or any(key in keys for keys in self._down.values())

    def blocked(self) -> list[str]:
        if not (self._heads or self._down or self._parked):
            return []
        return list(self._parked.union(self._heads, *self._down.values()))

    def blocked_types(self) -> list[str]:
        return list(set().union(*self._down_types.values())) if self._down_types else []

    def blocked_topics(self) -> list[tuple[str, str]]:
        """Topics with the types that must not be claimed of them."""
        return list(set().union(*self._down_topics.values())) if self._down_topics else []

    def blocks_single_keys(self) -> bool:
        """Is a key blocked because of its own event, rather than by a breaker?"""
        return bool(self._heads or self._parked)

    def awaited(self) -> set[Block]:
        """All breakers that events here wait for."""
        return self._down.keys() | self._down_types.keys() | self._down_topics.keys()

    def waiting_for(self, block: Block) -> tuple[list[str], list[str], list[str]]:
        """Keys, types of events without a key, and events to probe with."""
        return (
            list(self._down.get(block, ())),
            list(self._down_types.get(block, ())),
            list(self._probes.get(block, ())),
        )

    def due(self, now: float) -> dict[str, str]:
        """Heads that may be tried again, with their keys; the head that has been due for longest comes first."""
        due = sorted((due, head, key) for key, (head, due) in self._heads.items() if due <= now)
        return {head: key for _, head, key in due}

    def next_due(self) -> float | None:
        return min((due for _, due in self._heads.values()), default=None)

    def next_to_probe(self, block: Block) -> str | None:
        """An event that waits for this; it goes to the end of the queue of probes."""
        probes = self._probes.get(block)
        if not probes:
            return None
        event = next(iter(probes))
        del probes[event]
        probes[event] = None
        return event

    def now(self) -> Moment:
        return Moment(self._version)

    def freed_since(self, moment: Moment) -> bool:
        """May a claim find events now that a claim before that moment had to leave out?"""
        return self._version != moment

    def _settled_unfinished(self, one: Unfinished) -> None:
        event, settlement = one.event, one.settlement
        key = event.order_key if self.ordered else None
        if one.waits_for is not None:
            self._wait_for(one.waits_for, key, event)
        elif settlement.wait is not None:
            if key is not None:
                self._heads[key] = (event.id, time.monotonic() + settlement.wait.total_seconds())
        elif settlement.state != "pending":
            self._free(event.order_key, event.id)
            if settlement.state == "dead":
                self.died(key)

    def _wait_for(self, block: Block, key: str | None, event: Event) -> None:
        probes = self._probes.setdefault(block, {})
        if len(probes) < MOST_PROBES:
            probes.setdefault(event.id)
        if key is not None:
            self._heads.pop(key, None)
            self._down.setdefault(block, set()).add(key)
        elif block.topic is not None and event.topic is not None:
            self._down_topics.setdefault(block, set()).add((event.topic, event.type))
        else:
            self._down_types.setdefault(block, set()).add(event.type)

    def _free(self, key: str | None, head: str) -> None:
        """Free the key if this is the head it waits for; an earlier event of the same batch frees nothing."""
        if key is not None and key in self._heads and self._heads[key][0] == head:
            del self._heads[key]
            self._version += 1
