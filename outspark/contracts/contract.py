"""What every table contract must offer. A contract holds all its SQL; loops and commands only fill in parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import psycopg

from outspark.config.contracts import ContractSettings, known
from outspark.contracts.maintenance import TableMaintenance
from outspark.contracts.relay_statements import RelayStatements
from outspark.contracts.writing import OutboxWriter
from outspark.database.check import Finding
from outspark.database.names import TableName
from outspark.database.partitions import PartitionSql
from outspark.database.shape import script
from outspark.errors import SettingsError
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


@dataclass(frozen=True, slots=True)
class Housekeeping:
    """What a relay deletes by itself once a day, page by page, under the lock of `lock_table`."""

    at: str
    """The time of day, in UTC."""
    delivered: timedelta
    dead: timedelta
    """How long events stay that ended this way."""
    page_size: int
    max_pages: int
    """Pages per run and way to end, at most."""


class Contract(Protocol):
    """One kind of table. What its columns mean is known only here.

    A contract is one folder whose `CONTRACT` is a subclass of this, and its name in `outspark.contracts`. What most
    contracts do not have, such as a lock or partitions, has a default here that says so.
    """

    settings: ClassVar[ContractSettings]

    writer_privileges: ClassVar[tuple[str, ...]] = ("SELECT", "INSERT")
    """What a service must be allowed on the table."""
    shows_backoff: ClassVar[bool] = True
    """Does a row say that it failed before and waits for its next try?"""

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def default_table(self) -> str:
        return self.settings.default_table

    def variant(self, *, inbox: bool = False, partitioned: bool = False) -> Contract:
        """The contract for a table of this kind. SettingsError where there is none."""
        if inbox or partitioned:
            raise SettingsError(
                f"contract {self.name} has no {'inbox' if inbox else 'partitioned table'}; see --contract"
            )
        return self

    def statements(self, table: TableName) -> list[str]:
        """The table and its indexes, statement by statement, in the order to run them."""
        ...

    def drop_statements(self, table: TableName) -> list[str]:
        """Drop all of `statements` that nothing else may use."""
        ...

    def ddl(self, table: TableName) -> str:
        """The table and its indexes, as a script for psql."""
        return script(self.statements(table))

    def ready_index(self, table: TableName) -> str | None:
        """The statement for Outspark's own index on unfinished events; None where the table needs none."""
        return None

    def sequences(self, table: TableName) -> list[TableName]:
        """Sequences that a service needs to write events."""
        return []

    def check_table(
        self, conn: psycopg.Connection[Any], table: TableName, ignore: Collection[str] = ()
    ) -> list[Finding]:
        """What an existing table lacks, and what it has that would not be delivered and is not in `ignore`.

        Errors first.
        """
        ...

    def ignored(self, source: SourceSettings) -> Collection[str]:
        """What `check_table` ignores by the settings of a source."""
        return ()

    def maintenance(self, table: TableName) -> TableMaintenance: ...

    def relay_statements(
        self, table: TableName, settings: SourceSettings, conn: psycopg.Connection[Any] | None = None
    ) -> RelayStatements:
        """For a table with its schema, as `resolve` finds it.

        With a connection the contract may read the catalog, and use the indexes that the table has.
        """
        ...

    def outbox_writer(self, table: TableName) -> OutboxWriter:
        """How commands and inboxes write events into such an outbox, where a service has its own way to."""
        ...

    def lock_table(self, table: TableName) -> TableName | None:
        """Where relays of all makes take turns, by ShedLock's protocol; None where all may work side by side."""
        return None

    def lock_at_most(self, source: SourceSettings) -> timedelta | None:
        """How long that lock holds without being extended; None where there is none."""
        return None

    def housekeeping(self, source: SourceSettings) -> Housekeeping | None:
        """None where finished events are left to `outspark prune`."""
        return None

    def header_table(self, table: TableName) -> TableName | None:
        """Where headers are kept beside the events, if that table is there; None where they never are."""
        return None

    def side_tables(self, table: TableName) -> Mapping[str, str]:
        """Outspark's small tables that a lane needs besides `outspark_slots`: name -> CREATE TABLE IF NOT EXISTS."""
        return {}

    def partition_sql(self) -> PartitionSql:
        """When a partition may be dropped. SettingsError where tables of this contract have no partitions."""
        able = " and ".join(name for name, one in known().items() if one.partitions)
        raise SettingsError(f"partitions are kept on contract {able}, and this table is of {self.name}")
