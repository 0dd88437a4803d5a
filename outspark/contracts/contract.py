"""What every table contract must offer. A contract holds all its SQL; loops and commands only fill in parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol

import psycopg

from outspark.contracts.maintenance import TableMaintenance
from outspark.database.check import Finding
from outspark.database.names import TableName
from outspark.event import Event
from outspark.outcome import DeadKind

if TYPE_CHECKING:
    from outspark.config.settings import SourceSettings

State = Literal["done", "pending", "dead"]

TOKEN_PREFIX = "outspark/"
"""Every token of ours begins with it, which tells our claims from those of other relays."""

ASYNC_COMMIT = "(SELECT set_config('synchronous_commit', 'off', true)) = 'off'"
"""A condition that always holds: the commit of this transaction does not wait for the disk, nor for a standby.

For what is only done again when a crash of the server takes it back: a claim, and the mark that all of a batch was
delivered.
"""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What settle writes for one event that was not simply delivered."""

    id: str
    state: State
    counted: bool = False
    wait: timedelta | None = None
    error: str | None = None
    kind: DeadKind = "other"


@dataclass(frozen=True, slots=True)
class Timer:
    """A histogram of seconds that the contract's own relay has, under its name."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RelayStatements:
    """The statements of one lane on one source, as text for psycopg with named parameters.

    Every claim answers rows for `read`, with two more columns: the time its lease began, or NULL, and whether the bytes
    that it may bring were reached. Ids are text. Of settles only the number of rows counts: what they really changed,
    and what may stay as it is.

    | statement   | parameters                                                  | answers                     |
    |-------------|-------------------------------------------------------------|-----------------------------|
    | claim       | slots, blocked, types, low, limit, token                    | events                      |
    | claim_ids   | ids, token                                                  | events                      |
    | deliver     | ids, token + fence                                          | (rows changed)              |
    | deliver_all | ids, leased_at, token + fence                               | (rows changed)              |
    | settle      | ids, states, counts, waits (seconds), errors, kinds, token + fence | (rows changed)       |
    | adopt       | slots, max_attempts, error                                  | id, key, dead, oldest first |
    | suspects    | slots, blocked, limit                                       | id, key, oldest first       |
    | count_attempt | ids, max_attempts, error + fence                            | id, dead                    |
    | keys_in_backoff | slots                                                       | id, key, seconds until due  |
    | keys_behind_dead | slots                                                       | keys behind a dead event    |
    | next_due    | none                                                        | seconds to the next schedule |
    | oldest      | slots, park                                                 | id, seconds due, in flight  |

    `deliver_all` settles a whole batch, which may be found by its lease; `pack` makes a parameter of ids for both.
    The fence is `source, slots, epochs`: a settle changes nothing unless every slot still has that epoch.
    `adopt` gives back what a vanished owner had claimed; under `lease = "slot"`, where a claim leaves no mark,
    `suspects` and `count_attempt` stand in for it.
    `oldest` is for the driver: the due event that is to go out next, but for those that wait behind one that failed,
    and whether a claim marks any event as being in somebody's hands.
    """

    claim: str
    claim_ids: str
    deliver: str
    deliver_all: str
    settle: str
    adopt: str
    suspects: str
    count_attempt: str
    keys_in_backoff: str
    keys_behind_dead: str
    next_due: str
    oldest: str
    pack: Callable[[Sequence[str]], object]
    read: Callable[[Sequence[tuple[Any, ...]]], list[Event]]
    """The events of a claim, in the order to publish them."""
    low_water: bool = True
    """Does a claim take `low`, the time from which on to look?"""
    counts_attempts: bool = True
    """Is a failure that may pass an attempt? Otherwise the event is tried for ever."""
    marks_unroutable: bool = False
    """Does the contract mark an event whose topic is missing or forbidden, rather than let it wait?"""
    claim_timer: Timer | None = None
    publish_timer: Timer | None = None
    """Of each event that is delivered."""


class Contract(Protocol):
    """One kind of table. What its columns mean is known only here."""

    @property
    def name(self) -> str: ...

    @property
    def default_table(self) -> str: ...

    def ddl(self, table: TableName) -> str:
        """The table and its indexes, as a script for psql."""
        ...

    def statements(self, table: TableName) -> list[str]:
        """The same, statement by statement."""
        ...

    def check_table(
        self, conn: psycopg.Connection[Any], table: TableName, ignore: Collection[str] = ()
    ) -> list[Finding]:
        """What an existing table lacks, and what it has that would not be delivered and is not in `ignore`.

        Errors first.
        """
        ...

    def maintenance(self, table: TableName) -> TableMaintenance: ...

    def relay_statements(
        self, table: TableName, settings: SourceSettings, conn: psycopg.Connection[Any] | None = None
    ) -> RelayStatements:
        """For a table with its schema, as `resolve` finds it.

        With a connection the contract may look at the table and make the most of the indexes that it has.
        """
        ...

    def lock_table(self, table: TableName) -> TableName | None:
        """Where relays of other makes and ours take turns, by ShedLock's protocol; None where all may work at once."""
        ...

    def header_table(self, table: TableName) -> TableName | None:
        """Where headers are kept beside the events, if that table is there; None where they never are."""
        ...

    def side_tables(self, table: TableName) -> Mapping[str, str]:
        """Small tables of ours that a lane needs besides `outspark_slots`: name -> CREATE TABLE IF NOT EXISTS."""
        ...
