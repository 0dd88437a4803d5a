"""Ownership of slots: a session lock finds a dead owner at once, an epoch in `outspark_slots` fences a living one."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import psycopg

from outspark.contracts import slots as statements
from outspark.contracts.names import MADE_MEANWHILE, TableName, lock_class
from outspark.errors import OwnershipLost, SettingsError, SlotsTableMissing
from outspark.relay.connection import Connection
from outspark.relay.owner import Owner

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """One slot as it came to us. `settled` means that its last owner cannot be publishing any more."""

    slot: int
    clean: bool
    settled: bool
    note: str | None = None
    age: float | None = None
    """Seconds since its last owner left, if it did."""


@dataclass(slots=True)
class Slots:
    """The slots of one source on one lane's connection. Gone with the connection; make a new one after a loss."""

    conn: Connection
    table: TableName
    wanted: tuple[int, ...]
    count: int
    owner: Owner
    epochs: dict[int, int] = field(default_factory=dict)
    proved: float = 0.0

    @property
    def source(self) -> str:
        return str(self.table)

    def prepare(self, side_tables: Mapping[str, str] | None = None) -> None:
        """Make sure of our tables, and that nobody splits the keys of this outbox into another number of slots.

        `side_tables` are those that the contract needs besides: name -> statement that creates it.
        """
        own = {str(statements.slots_table(self.table)): statements.compose(statements.CREATE, self.table)}
        for name, create in {**own, **(side_tables or {})}.items():
            _ensure_table(self.conn, TableName.parse(name), create)
        row = self.conn.execute(
            statements.LAYOUT, {"class": lock_class("layout", self.table), "count": self.count}
        ).fetchone()
        if row is not None and row[1] is not None:
            raise SettingsError(
                f"slots = {self.count} for {self.table}, but another relay on this table works with slots = {row[1]}; "
                "give both the same number, or stop the other one first"
            )
        if self._split_otherwise():
            with self.conn.transaction():
                self.conn.execute(statements.ONE_AT_A_TIME, {"class": lock_class("split", self.table)})
                if owners := self._split_otherwise():
                    self._split_anew(owners)

    def take(self) -> list[Taken]:
        """Take what is free among the wanted slots that we do not own yet."""
        missing = [slot for slot in self.wanted if slot not in self.epochs]
        if not missing:
            return []
        tried = self.conn.execute(
            statements.TRY_LOCKS, {"class": lock_class("slot", self.table), "slots": missing}
        ).fetchall()
        free = [slot for slot, locked in tried if locked]
        if not free:
            return []
        rows = self.conn.execute(
            statements.compose(statements.TAKE, self.table),
            {"source": self.source, "slots": free, "owner": self._signature()},
        ).fetchall()
        self.proved = time.monotonic()
        self.epochs.update({slot: epoch for slot, epoch, *_ in rows})
        return [
            Taken(slot, clean, clean or _ended(before), note, age)
            for slot, _, before, clean, note, age in rows
        ]

    def _signature(self) -> str:
        return str(replace(self.owner, slots=self.count))

    def _split_otherwise(self) -> list[tuple[str, bool]]:
        """The last owners of the slots and whether they left in good order, if not all split the keys as we do."""
        owners: list[tuple[str, bool]] = self.conn.execute(
            statements.compose(statements.OWNERS, self.table), {"source": self.source}
        ).fetchall()
        # Where an owner does not say, there were as many as there are rows.
        parsed = [Owner.parse(owner) for owner, _ in owners]
        counts = {len(owners) if one is None or one.slots is None else one.slots for one in parsed}
        return owners if counts - {self.count} else []

    def _split_anew(self, owners: list[tuple[str, bool]]) -> None:
        """Nobody works on the table with another number of slots now, but somebody may have ended in mid-batch."""
        vanished = [owner for owner, clean in owners if not clean]
        # If one of them may still be publishing, that is what has to be known of every slot.
        living = [owner for owner in vanished if not _ended(owner)]
        known = Owner.parse((living or vanished or [str(self.owner)])[0])
        unknown = Owner("unknown", "-", 0, "-", 0)
        self.conn.execute(
            statements.compose(statements.SPLIT_ANEW, self.table),
            {
                "source": self.source,
                "count": self.count,
                "owner": str(replace(known or unknown, slots=self.count)),
                "clean": not vanished,
            },
        )

    def begin(self, slots: list[int]) -> None:
        """Put our name to slots that were left in disorder, once nobody else can be publishing from them."""
        self.conn.execute(
            statements.compose(statements.BEGIN, self.table),
            {"source": self.source, "slots": slots, "owner": self._signature()},
        )

    def prove(self) -> None:
        """OwnershipLost unless every slot is still ours."""
        row = self.conn.execute(
            statements.compose(statements.PROVE, self.table),
            {"source": self.source, "slots": list(self.epochs), "epochs": list(self.epochs.values())},
        ).fetchone()
        if row is None or not row[0]:
            raise OwnershipLost(f"slots of {self.table} were taken by another owner")
        self.proved = time.monotonic()

    def leave(self, slots: list[int], note: str | None = None) -> None:
        """Mark these as left in good order, and let go of all. The locks go with `pg_advisory_unlock_all`."""
        if slots:
            epochs = [self.epochs[slot] for slot in slots]
            self.conn.execute(
                statements.compose(statements.LEAVE, self.table),
                {"source": self.source, "slots": slots, "epochs": epochs, "note": note},
            )
        self.epochs.clear()


def _ended(owner: str | None) -> bool:
    parsed = Owner.parse(owner) if owner else None
    return parsed is not None and parsed.has_ended()


def _ensure_table(conn: Connection, table: TableName, create: str) -> None:
    row = conn.execute(statements.EXISTS, {"name": table.identifier.as_string(conn)}).fetchone()
    if row is not None and row[0]:
        return
    try:
        conn.execute(create.encode())
    except MADE_MEANWHILE:
        log.debug("%s was created by another lane at the same moment", table)
    except psycopg.errors.InsufficientPrivilege as error:
        raise SlotsTableMissing(create) from error
