"""The statements of one lane on one source, each typed by the parameters that it takes and the rows that it answers.

| statement        | parameters                                                         | answers                     |
|------------------|--------------------------------------------------------------------|-----------------------------|
| claim            | slots, blocked, types, topics, topic_types, low, limit, token      | events                      |
| claim_ids        | ids, token                                                         | events                      |
| deliver          | ids, leased_at, token + fence                                      | (rows changed)              |
| deliver_all      | ids, leased_at, token + fence                                      | (rows changed)              |
| settle           | ids, states, counts, waits (seconds), errors, kinds, token + fence | (rows changed)              |
| adopt            | slots, max_attempts, error                                         | id, key, dead; oldest first |
| suspects         | slots, blocked, limit                                              | id, key; oldest first       |
| count_attempt    | ids, max_attempts, error + fence                                   | id, dead                    |
| keys_in_backoff  | slots                                                              | id, key, seconds until due  |
| keys_behind_dead | slots                                                              | keys behind a dead event    |
| next_due         | none                                                               | seconds to the next schedule |
| oldest           | slots, park                                                        | id, seconds due, in flight  |

Ids are text. A contract names only the parameters that it needs: psycopg ignores the others. The fence is
`source, slots, epochs`: a settle changes nothing unless every slot still has that epoch. `deliver_all` settles a whole
batch, which may be found by its lease. `adopt` gives back what a crashed owner had claimed; under `lease = "slot"`,
where a claim writes nothing, `suspects` and `count_attempt` stand in for it. The driver asks for `oldest`: the due
event that is to go out next, except events behind one that failed, and whether any event is marked as claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

from outspark.database.arrays import Texts
from outspark.event import Event

Params = TypeVar("Params", bound=Mapping[str, object])
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Claim(Generic[Params]):
    """Answers rows for `RelayStatements.read`.

    The last two columns: when the lease began, or NULL, and whether the bound on bytes cut the claim.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Query(Generic[Params, Row]):
    """`row` turns each tuple that psycopg answers into what the statement promises."""

    text: str
    row: Callable[[tuple[Any, ...]], Row]


@dataclass(frozen=True, slots=True)
class Command(Generic[Params]):
    """Judged by its row count alone: the rows changed plus the rows that may rightly stay unchanged."""

    text: str


class OnSlots(TypedDict):
    slots: Sequence[int]


class ClaimParams(OnSlots):
    blocked: Texts
    """Keys."""
    types: Sequence[str]
    """Types of events without a key that are not to be claimed, or not of the topic beside them in `topics`."""
    topics: Sequence[str]
    topic_types: Sequence[str]
    low: datetime
    limit: int
    token: str


class ClaimIdsParams(TypedDict):
    ids: Sequence[str]
    token: str


class Fence(TypedDict):
    source: str
    slots: Sequence[int]
    epochs: Sequence[int]


class DeliverParams(Fence):
    ids: object
    """As `pack` makes it."""
    leased_at: datetime | None
    token: str


class SettleParams(Fence):
    ids: Sequence[str]
    states: Sequence[str]
    counts: Sequence[int]
    waits: Sequence[float | None]
    errors: Sequence[str | None]
    kinds: Sequence[str]
    token: str


class AdoptParams(OnSlots):
    max_attempts: int
    error: str


class SuspectsParams(OnSlots):
    blocked: Sequence[str]
    limit: int


class CountAttemptParams(Fence):
    ids: Sequence[str]
    max_attempts: int
    error: str


class OldestParams(OnSlots):
    park: bool


class NoParams(TypedDict):
    pass


class Adopted(NamedTuple):
    id: str
    key: str | None
    dead: bool


class Suspect(NamedTuple):
    id: str
    key: str | None


class CountedAttempt(NamedTuple):
    id: str
    dead: bool


class KeyInBackoff(NamedTuple):
    head: str
    key: str
    seconds: float
    """Until its next try."""


class KeyBehindDead(NamedTuple):
    key: str


class NextDue(NamedTuple):
    seconds: float | None


class Oldest(NamedTuple):
    id: str
    seconds: float
    in_flight: bool


@dataclass(frozen=True, slots=True)
class Timer:
    """A histogram of seconds that the contract's own relay has, under its name."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RelayStatements:
    claim: Claim[ClaimParams]
    claim_ids: Claim[ClaimIdsParams]
    deliver: Command[DeliverParams]
    deliver_all: Command[DeliverParams]
    settle: Command[SettleParams]
    adopt: Query[AdoptParams, Adopted]
    suspects: Query[SuspectsParams, Suspect]
    count_attempt: Query[CountAttemptParams, CountedAttempt]
    keys_in_backoff: Query[OnSlots, KeyInBackoff]
    keys_behind_dead: Query[OnSlots, KeyBehindDead]
    next_due: Query[NoParams, NextDue]
    oldest: Query[OldestParams, Oldest]
    pack: Callable[[Sequence[str]], object]
    """Makes the parameter `ids` of `deliver` and `deliver_all`."""
    read: Callable[[Sequence[tuple[Any, ...]]], list[Event]]
    """The events of a claim, in the order to publish them."""
    low_water: bool = True
    """Does a claim take `low`, the time from which on it scans?"""
    counts_attempts: bool = True
    """Does a failure that may succeed later count as an attempt? Otherwise the relay retries the event for ever."""
    marks_unroutable: bool = False
    """Does the contract mark an event whose topic is missing or forbidden, rather than let it wait?"""
    claim_timer: Timer | None = None
    publish_timer: Timer | None = None
    """Of each event that is delivered."""
