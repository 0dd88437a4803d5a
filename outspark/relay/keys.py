"""Which keys must not be claimed now: their head waits for its next try or for a breaker, or they are parked.

Only an optimisation of what the table says: a restart builds it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Block(NamedTuple):
    """What events wait for: a destination that is down, one topic of it, or (without a destination) a paused type."""

    destination: str
    topic: str | None = None
    type: str | None = None


@dataclass(slots=True)
class BlockedKeys:
    heads: dict[str, tuple[str, float]] = field(default_factory=dict)
    """key -> (its head, when that may be tried again on the monotonic clock)"""
    down: dict[Block, set[str]] = field(default_factory=dict)
    """What is closed -> keys that wait for it"""
    down_types: dict[Block, set[str]] = field(default_factory=dict)
    """What is closed -> types of events without a key that wait for it"""
    first: dict[Block, str] = field(default_factory=dict)
    """What is closed -> the first event that waits for it: the one to probe with"""
    parked: set[str] = field(default_factory=set)
    freed: int = 0
    """Rises whenever something stops being blocked: what was passed over before has to be looked at again."""

    def wait_for_retry(self, key: str, head: str, due: float) -> None:
        self.heads[key] = (head, due)

    def wait_for(self, block: Block, key: str | None, event_type: str, event: str) -> None:
        self.first.setdefault(block, event)
        if key is None:
            self.down_types.setdefault(block, set()).add(event_type)
        else:
            self.heads.pop(key, None)
            self.down.setdefault(block, set()).add(key)

    def wait_for_note(self, block: Block, keys: list[str], types: list[str], first: str | None) -> None:
        """The same, as another lane noted it."""
        if first is not None:
            self.first[block] = first
        if keys:
            self.down.setdefault(block, set()).update(keys)
        if types:
            self.down_types.setdefault(block, set()).update(types)

    def awaited(self) -> set[Block]:
        """What something here waits for."""
        return self.down.keys() | self.down_types.keys()

    def lift(self, block: Block) -> None:
        """What waited for this may go on."""
        self.down.pop(block, None)
        self.down_types.pop(block, None)
        self.first.pop(block, None)
        self.freed += 1

    def free(self, key: str | None, head: str) -> None:
        """The key is free if this is the head it waits for; an earlier event of the same batch frees nothing."""
        if key is not None and key in self.heads and self.heads[key][0] == head:
            del self.heads[key]
            self.freed += 1

    def park_only(self, keys: set[str]) -> None:
        """These keys, and no others, stand behind a dead event."""
        self.freed += not self.parked <= keys
        self.parked = keys

    def due(self, now: float) -> dict[str, str]:
        """Heads that may be tried again, with their keys."""
        return {head: key for key, (head, due) in self.heads.items() if due <= now}

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

    def clear(self) -> None:
        self.heads.clear()
        self.down.clear()
        self.down_types.clear()
        self.first.clear()
        self.parked.clear()
