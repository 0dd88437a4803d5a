"""What every table contract must offer. A contract holds all its SQL; loops and commands only fill in parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

import psycopg
from psycopg import sql

from outspark.contracts.findings import Finding
from outspark.contracts.names import TableName
from outspark.contracts.upkeep import Upkeep

State = Literal["done", "ready", "dead"]

TOKEN_PREFIX = "outspark/"
"""Every token of ours begins with it, which tells our claims from those of other relays."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What settle writes for one event that was not simply delivered."""

    id: str
    state: State
    counted: bool = False
    wait: timedelta | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LaneStatements:
    """The statements of one lane on one source, as text for psycopg with named parameters.

    Every claim answers the columns of `Event`, in its order, and then when its lease began. Ids are text. Settles
    answer nothing: how many rows they really changed is in the command's tag.

    | statement   | parameters                                                  | answers                     |
    |-------------|-------------------------------------------------------------|-----------------------------|
    | claim       | slots, blocked, types, low, limit, token                    | events                      |
    | claim_ids   | ids, token                                                  | events                      |
    | deliver     | ids, token + fence                                          | (rows changed)              |
    | deliver_all | ids, leased_at, token + fence                               | (rows changed)              |
    | settle      | ids, states, counts, waits (seconds), errors, token + fence | (rows changed)              |
    | adopt       | slots, max_attempts, error                                  | id, key, dead, oldest first |
    | suspects    | slots, blocked, limit                                       | id, key, oldest first       |
    | count       | ids, max_attempts, error + fence                            | id, dead                    |
    | waiting     | slots                                                       | id, key, seconds until due  |
    | parked      | slots                                                       | keys behind a dead event    |
    | next_due    | none                                                        | seconds to the next schedule |

    `deliver_all` settles a whole batch, which may be found by its lease; `pack` makes a parameter of ids for both.
    The fence is `source, slots, epochs`: a settle changes nothing unless every slot still has that epoch.
    `adopt` gives back what a vanished owner had claimed; under `lease = "slot"`, where a claim leaves no mark,
    `suspects` and `count` stand in for it.
    """

    claim: str
    claim_ids: str
    deliver: str
    deliver_all: str
    settle: str
    adopt: str
    suspects: str
    count: str
    waiting: str
    parked: str
    next_due: str
    pack: Callable[[Sequence[str]], object]


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

    def check_table(self, conn: psycopg.Connection[Any], table: TableName) -> list[Finding]:
        """What an existing table lacks; errors first."""
        ...

    def upkeep(self, table: TableName) -> Upkeep: ...

    def lane_statements(
        self,
        table: sql.Identifier,
        slots_table: sql.Identifier,
        *,
        slots: int,
        ordering: Literal["key", "none"],
        lease: Literal["row", "slot"],
    ) -> LaneStatements: ...
