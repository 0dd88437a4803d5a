"""Which keys must not be claimed now: their head waits for its next try or for a breaker, or they are parked.

Only an optimisation of what the table says: a restart builds it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outspark.delivery.destination import Block
from outspark.event import Event

MOST_PROBES = 10
"""Events that are remembered for probing what is closed: one of them may be at fault itself."""


@dataclass(slots=True)
class BlockedKeys:
    heads: dict[str, tuple[str, float]] = field(default_factory=dict)
    """key -> (its head, when that may be tried again on the monotonic clock)"""
    down: dict[Block, set[str]] = field(default_factory=dict)
    """What is closed -> keys that wait for it"""
    down_types: dict[Block, set[str]] = field(default_factory=dict)
    """What is closed -> types of events without a key that wait for it"""
    down_topics: dict[Block, set[tuple[str, str]]] = field(default_factory=dict)
    """What is closed -> topics, as their rows name them, and types of events without a key that wait for it"""
    probes: dict[Block, dict[str, None]] = field(default_factory=dict)
    """What is closed -> some events that wait for it, in the order in which they are to probe it"""
    parked: set[str] = field(default_factory=set)
    version: int = 0
    """Rises whenever something stops being blocked: what was passed over before has to be looked at again."""

    def wait_for_retry(self, key: str, head: str, due: float) -> None:
        self.heads[key] = (head, due)

    def wait_for(self, block: Block, key: str | None, event: Event) -> None:
        probes = self.probes.setdefault(block, {})
        if len(probes) < MOST_PROBES:
            probes.setdefault(event.id)
        if key is not None:
            self.heads.pop(key, None)
            self.down.setdefault(block, set()).add(key)
        elif block.topic is not None and event.topic is not None:
            self.down_topics.setdefault(block, set()).add((event.topic, event.type))
        else:
            self.down_types.setdefault(block, set()).add(event.type)

    def wait_for_note(self, block: Block, keys: list[str], types: list[str], probes: list[str]) -> None:
        """The same, as another lane noted it. Only lanes with an order leave notes, so no topics are among them."""
        if probes:
            self.probes[block] = dict.fromkeys(probes)
        if keys:
            self.down.setdefault(block, set()).update(keys)
        if types:
            self.down_types.setdefault(block, set()).update(types)

    def next_to_probe(self, block: Block) -> str | None:
        """An event that waits for this; it is the last in turn now."""
        probes = self.probes.get(block)
        if not probes:
            return None
        event = next(iter(probes))
        del probes[event]
        probes[event] = None
        return event

    def forget_probe(self, block: Block, event: str) -> None:
        """It is not there any more: somebody else settled or discarded it."""
        self.probes.get(block, {}).pop(event, None)

    def awaited(self) -> set[Block]:
        """What something here waits for."""
        return self.down.keys() | self.down_types.keys() | self.down_topics.keys()

    def lift(self, block: Block) -> None:
        """What waited for this may go on."""
        for waiting in (self.down, self.down_types, self.down_topics, self.probes):
            waiting.pop(block, None)
        self.version += 1

    def free(self, key: str | None, head: str) -> None:
        """The key is free if this is the head it waits for; an earlier event of the same batch frees nothing."""
        if key is not None and key in self.heads and self.heads[key][0] == head:
            del self.heads[key]
            self.version += 1

    def park_only(self, keys: set[str]) -> None:
        """These keys, and no others, stand behind a dead event."""
        self.version += not self.parked <= keys
        self.parked = keys

    def due(self, now: float) -> dict[str, str]:
        """Heads that may be tried again, with their keys; those that have been due for longest come first."""
        due = sorted((due, head, key) for key, (head, due) in self.heads.items() if due <= now)
        return {head: key for _, head, key in due}

    def next_due(self) -> float | None:
        return min((due for _, due in self.heads.values()), default=None)

    def __contains__(self, key: str) -> bool:
        return key in self.heads or key in self.parked or any(key in keys for keys in self.down.values())

    def blocked(self) -> list[str]:
        if not (self.heads or self.down or self.parked):
            return []
        return list(self.parked.union(self.heads, *self.down.values()))

    def blocked_types(self) -> list[str]:
        return list(set().union(*self.down_types.values())) if self.down_types else []

    def blocked_topics(self) -> list[tuple[str, str]]:
        """Topics with the types that must not be claimed of them."""
        return list(set().union(*self.down_topics.values())) if self.down_topics else []

    def clear(self) -> None:
        for blocked in (self.heads, self.down, self.down_types, self.down_topics, self.probes, self.parked):
            blocked.clear()
