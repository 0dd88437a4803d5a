"""A history of an inbox: what was published, what the lanes did, and what the tables say in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from outspark.config.inbox import Strategy
from tests.history.inbox.drafts import Draft
from tests.history.inbox.journal import Entry


@dataclass(frozen=True, slots=True)
class Row:
    """A message as the inbox has it in the end. `accepted` rises with each row that is taken in."""

    name: str
    group: str
    status: str
    attempts: int
    accepted: int
    locked_by: str | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """What a handler wrote into its own table, and what was committed; in the order of writing."""

    name: str
    group: str
    process: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """How the inbox was configured, as far as it decides what is right."""

    strategy: Strategy
    groups: tuple[str, ...]
    max_attempts: int
    batch_size: int
    """Of the feed; workers have smaller ones."""
    ordering: Literal["key", "none"] = "none"
    partitioned: bool = False


@dataclass(frozen=True, slots=True)
class History:
    rules: Rules
    published: Mapping[str, Draft]
    """By name."""
    rows: Sequence[Row]
    effects: Sequence[Effect]
    entries: Sequence[Entry]
    killed: set[str] = field(default_factory=set)
    """Processes that ended by SIGKILL, whoever sent it."""
    cuts: int = 0
    """Lanes that lost their sessions all at once, each time counted."""

    @property
    def interruptions(self) -> int:
        return len(self.killed) + self.cuts
