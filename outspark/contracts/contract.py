"""What every table contract must offer. A contract holds all its SQL; loops and commands only fill in parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol

import psycopg

from outspark.contracts.maintenance import TableMaintenance
from outspark.contracts.relay_statements import RelayStatements
from outspark.database.check import Finding
from outspark.database.names import TableName
from outspark.outcome import DeadKind

if TYPE_CHECKING:
    from outspark.config.settings import SourceSettings

State = Literal["done", "pending", "dead"]

TOKEN_PREFIX = "outspark/"
"""Every token of Outspark begins with it, which tells its claims from those of other relays."""

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

        With a connection the contract may inspect the table and make the most of its indexes.
        """
        ...

    def lock_table(self, table: TableName) -> TableName | None:
        """Where Outspark and other relays take turns, by ShedLock's protocol; None where all may work together."""
        ...

    def header_table(self, table: TableName) -> TableName | None:
        """Where headers are kept beside the events, if that table is there; None where they never are."""
        ...

    def side_tables(self, table: TableName) -> Mapping[str, str]:
        """Small tables that a lane needs besides `outspark_slots`: name -> CREATE TABLE IF NOT EXISTS."""
        ...
