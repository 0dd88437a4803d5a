"""Slots: each is a share of a source's keys, and has one owner at a time.

Two mechanisms keep it so. An advisory lock per slot decides who may become the owner; PostgreSQL releases it when the
owner's session ends. The table `outspark_slots` keeps an epoch per slot, which every new owner increments. An owner
whose session died may not know it yet, so every settle carries the epochs under which its slots are owned and changes
nothing if one of them has risen: see FENCE.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import psycopg
from psycopg import sql

from outspark.database.names import MADE_MEANWHILE, TableName, lock_class
from outspark.database.session import Connection
from outspark.errors import OwnershipLost, SettingsError, SlotsTableMissing

log = logging.getLogger(__name__)

SLOTS_TABLE = "outspark_slots"

CREATE = """\
-- Which owner has which slot of which outbox, or had it last. `epoch` rises with every owner and fences off earlier
-- ones; `clean` says that the owner has released the slot in good order; `note` is for the next owner.
CREATE TABLE IF NOT EXISTS {slots_table} (
    source text NOT NULL,
    slot integer NOT NULL,
    epoch bigint NOT NULL,
    owner text NOT NULL,
    since timestamptz NOT NULL,
    clean boolean NOT NULL,
    note text,
    PRIMARY KEY (source, slot)
) WITH (fillfactor = 50)"""

EXISTS = """\
-- Does the table exist already?
SELECT to_regclass(%(name)s) IS NOT NULL"""

TRY_LOCKS = """\
-- Try to become the owner of each slot. A lock ends with its session, so the slot of a crashed owner is free soon.
SELECT slot, pg_try_advisory_lock(%(class)s::int, slot) FROM unnest(%(slots)s::int[]) AS slot"""

TAKE = """\
-- Increment the epochs of slots whose locks this lane holds. Returns the previous owner, whether it released the slot
-- in good order, and its note. If it did not, its name stays until this lane begins to work: if this lane crashes
-- first, its successor still has to wait for the same previous owner.
WITH before AS (
  SELECT slot, owner, clean, note, since FROM {slots_table} WHERE source = %(source)s AND slot = ANY(%(slots)s::int[])
), taken AS (
  INSERT INTO {slots_table} AS s (source, slot, epoch, owner, since, clean)
  SELECT %(source)s, slot, 1, %(owner)s, clock_timestamp(), false FROM unnest(%(slots)s::int[]) AS slot
  ON CONFLICT (source, slot) DO UPDATE
  SET epoch = s.epoch + 1, since = EXCLUDED.since, clean = false, note = NULL,
      owner = CASE WHEN s.clean THEN EXCLUDED.owner ELSE s.owner END
  RETURNING slot, epoch
)
SELECT t.slot, t.epoch, b.owner, coalesce(b.clean, true), b.note,
  extract(epoch FROM clock_timestamp() - b.since)::float8
FROM taken t LEFT JOIN before b USING (slot) ORDER BY t.slot"""

OWNERS = """\
-- The last owner of each slot, and whether it released the slot in good order
SELECT owner, clean FROM {slots_table} WHERE source = %(source)s ORDER BY slot"""

ONE_AT_A_TIME = """\
-- Serialize changes of the layout until the end of this transaction
SELECT pg_advisory_xact_lock(%(class)s::int, 0)"""

SPLIT_ANEW = """\
-- Write the rows of a new layout of the keys. An event in flight in any old slot may be in any new one, so all new
-- slots are unclean if one old slot was. Epochs continue from the highest; slots beyond the new count are clean.
WITH old AS (
  SELECT max(epoch) + 1 AS epoch, max(slot) AS last FROM {slots_table} WHERE source = %(source)s
)
INSERT INTO {slots_table} AS s (source, slot, epoch, owner, since, clean)
SELECT %(source)s, slot, old.epoch, %(owner)s, clock_timestamp(), %(clean)s OR slot >= %(count)s
FROM old, generate_series(0, greatest(%(count)s - 1, old.last)) AS slot
ON CONFLICT (source, slot) DO UPDATE
SET epoch = EXCLUDED.epoch, owner = EXCLUDED.owner, since = EXCLUDED.since, clean = EXCLUDED.clean, note = NULL"""

BEGIN = """\
-- Become the owner by name of slots whose previous owner cannot be publishing any more.
UPDATE {slots_table} SET owner = %(owner)s WHERE source = %(source)s AND slot = ANY(%(slots)s::int[])"""

LEAVE = """\
-- Mark the slots as released in good order, if their epochs are still those of this lane, with a note on the first.
UPDATE {slots_table} s
SET clean = true, since = clock_timestamp(), note = CASE WHEN s.slot = (%(slots)s::int[])[1] THEN %(note)s END
FROM unnest(%(slots)s::int[], %(epochs)s::bigint[]) AS mine(slot, epoch)
WHERE s.source = %(source)s AND s.slot = mine.slot AND s.epoch = mine.epoch"""

PROVE = """\
-- Do all these slots still have the epochs of this lane?
SELECT count(*) = cardinality(%(slots)s::int[])
FROM {slots_table} s JOIN unnest(%(slots)s::int[], %(epochs)s::bigint[]) AS mine(slot, epoch) USING (slot, epoch)
WHERE s.source = %(source)s"""

FENCE = """
fence AS MATERIALIZED (
  SELECT count(*) = cardinality(%(slots)s::int[]) AS holds FROM (
    SELECT 1 FROM {slots_table} s
    JOIN unnest(%(slots)s::int[], %(epochs)s::bigint[]) AS mine(slot, epoch) USING (slot, epoch)
    WHERE s.source = %(source)s FOR SHARE OF s
  ) held
)"""
"""Part of a settle: `(SELECT holds FROM fence)` is true while every slot has the epoch of the settling lane.

FOR SHARE makes a new owner's TAKE wait for the settle to commit, so the epoch cannot rise between check and update.
MATERIALIZED evaluates the fence once, not per row.
"""

OWNED = """\
-- How many slots one run of a relay owns, by its instance
SELECT count(*) FROM {slots_table}
WHERE source = %(source)s AND NOT clean AND strpos(owner, %(instance)s) > 0"""

HELD = """\
-- Which slots of this outbox are locked, by any relay, and in which session
SELECT objid::int, pid FROM pg_catalog.pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = (%(class)s::bigint & 4294967295)::oid
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""

OURS = """\
-- Which slots one run of a relay had last, by its instance, and whether it has released them. Slots in the grace of a
-- crashed owner still carry that owner's name, and are not among them.
SELECT slot, clean FROM {slots_table} WHERE source = %(source)s AND strpos(owner, %(instance)s) > 0"""

LAYOUT = """\
-- Announce the number of slots of this relay by a shared lock, and find a relay that announces another number.
SELECT pg_advisory_lock_shared(%(class)s::int, %(count)s::int),
       (SELECT min(objid::int) FROM pg_locks
        WHERE locktype = 'advisory' AND granted AND classid = (%(class)s::bigint & 4294967295)::oid
          AND objsubid = 2 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND objid <> %(count)s::bigint::oid)"""


def slots_table(outbox: TableName) -> TableName:
    """The table is in the schema of the outbox."""
    return TableName(SLOTS_TABLE, outbox.schema)


def compose(template: str, outbox: TableName) -> str:
    return sql.SQL(template).format(slots_table=slots_table(outbox).identifier).as_string(None)


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FORM = re.compile(
    r"(?P<relay>.*) instance=(?P<instance>\S+) lane=(?P<lane>\d+) host=(?P<host>\S+) pid=(?P<pid>\d+)"
    r"(?: slots=(?P<slots>\d+))?"
)


@dataclass(frozen=True, slots=True)
class Owner:
    """The lane that owns a slot, and its process; kept as text in `outspark_slots.owner`."""

    relay: str
    instance: str
    lane: int
    host: str
    pid: int
    slots: int | None = None
    """The number of slots in the owner's layout."""

    @classmethod
    def here(cls, relay: str, instance: str, lane: int) -> Owner:
        return cls(relay, instance, lane, _host(), os.getpid())

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        match = _FORM.fullmatch(text)
        if match is None:
            return None
        slots = int(match["slots"]) if match["slots"] else None
        return cls(
            match["relay"], match["instance"], int(match["lane"]), match["host"], int(match["pid"]), slots
        )

    def __str__(self) -> str:
        slots = f" slots={self.slots}" if self.slots is not None else ""
        return (
            f"{self.relay} instance={self.instance} lane={self.lane} host={self.host} pid={self.pid}{slots}"
        )

    def has_ended(self) -> bool:
        """True only when it is certain that this owner does not publish any more.

        A worker process hosts one lane at a time, so an owner in this very process has ended, and so has an owner
        whose process does not exist any more. About processes on other hosts nothing is known.
        """
        if self.host != _host():
            return False
        return self.pid == os.getpid() or not _alive(self.pid)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """A killed process keeps its pid until its parent reaps it, but it does not run any more."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return False


def _host() -> str:
    """The host name with, where the system has them, the pid namespace and the boot id.

    Pids are comparable only within one namespace and one boot: containers may share a host name, and so may machines.
    """
    try:
        namespace = os.readlink("/proc/self/ns/pid").removeprefix("pid:").strip("[]")
    except OSError:
        namespace = "-"
    return f"{socket.gethostname()}/{namespace}/{_boot()}"


@cache
def _boot() -> str:
    try:
        return BOOT_ID.read_text().strip() or "-"
    except OSError:
        return "-"


@dataclass(frozen=True, slots=True)
class Taken:
    """One slot as it was taken. `settled` means that its previous owner cannot be publishing any more."""

    slot: int
    clean: bool
    settled: bool
    note: str | None = None
    age: float | None = None
    """Seconds since the previous owner released the slot or, if it did not, took it; None for a new slot."""


@dataclass(slots=True)
class Slots:
    """The slots of one source, owned through one lane's connection. Its loss releases the locks: make a new object."""

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
        """Create Outspark's tables where missing, and check that every relay on this outbox uses the same layout.

        `side_tables` are further tables that the contract needs: name -> statement that creates it.
        """
        own = {str(slots_table(self.table)): compose(CREATE, self.table)}
        for name, create in {**own, **(side_tables or {})}.items():
            _ensure_table(self.conn, TableName.parse(name), create)
        row = self.conn.execute(
            LAYOUT, {"class": lock_class("layout", self.table), "count": self.count}
        ).fetchone()
        if row is not None and row[1] is not None:
            raise SettingsError(
                f"slots = {self.count} for {self.table}, but another relay on this table works with slots = {row[1]}; "
                "give both the same number, or stop the other one first"
            )
        # The shared lock above proves that no relay with another layout is running. The rows may still be those of an
        # earlier layout: the check is repeated under the lock, because another lane may have just rewritten them.
        if self._split_otherwise():
            with self.conn.transaction():
                self.conn.execute(ONE_AT_A_TIME, {"class": lock_class("split", self.table)})
                if owners := self._split_otherwise():
                    self._split_anew(owners)

    def take(self) -> list[Taken]:
        """Take the free ones of the wanted slots that this lane does not own yet."""
        missing = [slot for slot in self.wanted if slot not in self.epochs]
        if not missing:
            return []
        tried = self.conn.execute(
            TRY_LOCKS, {"class": lock_class("slot", self.table), "slots": missing}
        ).fetchall()
        free = [slot for slot, locked in tried if locked]
        if not free:
            return []
        rows = self.conn.execute(
            compose(TAKE, self.table),
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
        """The last owners of the slots and whether they released them cleanly; empty if all used this layout."""
        owners: list[tuple[str, bool]] = self.conn.execute(
            compose(OWNERS, self.table), {"source": self.source}
        ).fetchall()
        # An owner without a `slots=` part had as many slots as there are rows.
        parsed = [Owner.parse(owner) for owner, _ in owners]
        counts = {len(owners) if one is None or one.slots is None else one.slots for one in parsed}
        return owners if counts - {self.count} else []

    def _split_anew(self, owners: list[tuple[str, bool]]) -> None:
        """Change the layout. No relay with the old one is running, but one may have crashed in mid-batch."""
        unclean = [owner for owner, clean in owners if not clean]
        # If one of them may still be publishing, every new slot has to name it, so that its grace is waited for.
        living = [owner for owner in unclean if not _ended(owner)]
        known = Owner.parse((living or unclean or [str(self.owner)])[0])
        unknown = Owner("unknown", "-", 0, "-", 0)
        self.conn.execute(
            compose(SPLIT_ANEW, self.table),
            {
                "source": self.source,
                "count": self.count,
                "owner": str(replace(known or unknown, slots=self.count)),
                "clean": not unclean,
            },
        )

    def begin(self, slots: list[int]) -> None:
        """Write this lane's name to unclean slots, once no earlier owner can be publishing from them."""
        self.conn.execute(
            compose(BEGIN, self.table),
            {"source": self.source, "slots": slots, "owner": self._signature()},
        )

    def prove(self) -> None:
        """OwnershipLost unless every slot still has the epoch of this lane."""
        row = self.conn.execute(
            compose(PROVE, self.table),
            {"source": self.source, "slots": list(self.epochs), "epochs": list(self.epochs.values())},
        ).fetchone()
        if row is None or not row[0]:
            raise OwnershipLost(f"slots of {self.table} were taken by another owner")
        self.proved = time.monotonic()

    def leave(self, slots: list[int], note: str | None = None) -> None:
        """Mark these slots as released and forget all. The caller releases the locks with `pg_advisory_unlock_all`."""
        if slots:
            epochs = [self.epochs[slot] for slot in slots]
            self.conn.execute(
                compose(LEAVE, self.table),
                {"source": self.source, "slots": slots, "epochs": epochs, "note": note},
            )
        self.epochs.clear()


def _ended(owner: str | None) -> bool:
    parsed = Owner.parse(owner) if owner else None
    return parsed is not None and parsed.has_ended()


def _ensure_table(conn: Connection, table: TableName, create: str) -> None:
    row = conn.execute(EXISTS, {"name": table.identifier.as_string(conn)}).fetchone()
    if row is not None and row[0]:
        return
    try:
        conn.execute(create.encode())
    except MADE_MEANWHILE:
        log.debug("%s was created by another lane at the same moment", table)
    except psycopg.errors.InsufficientPrivilege as error:
        raise SlotsTableMissing(create) from error
