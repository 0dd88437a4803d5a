"""The doorbell rings when a lane is asleep and only then, from the trigger and from enqueue alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from psycopg import sql

from outspark.contracts.openoutbox.table import ddl
from outspark.database.doorbell import doorbell_ddl, installed_lanes, removal_ddl
from outspark.database.names import TableName, bell_channel, lock_class, resolve
from outspark.errors import SettingsError
from outspark.outbox.openoutbox import NewEvent, Outbox
from tests.databases import Database

TABLE = TableName("openoutbox_events", "public")
LANES = 2


class Street:
    """A writer, a listener and lanes that may be asleep, each on a connection of its own."""

    def __init__(self, database: Database, *, trigger: bool) -> None:
        self._database = database
        self.writer = database.connect()
        self.writer.execute(ddl(TABLE))
        if trigger:
            self.writer.execute(doorbell_ddl(TABLE, LANES))
        self._outbox = Outbox(str(TABLE), ring=0 if trigger else LANES)
        self._listener = database.connect()
        self._listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(bell_channel(TABLE))))

    def write(self, events: int = 1) -> None:
        self._outbox.enqueue(self.writer, *(NewEvent("t", b"") for _ in range(events)))

    def fall_asleep(self, lane: int) -> bool:
        asleep = self._database.connect()
        query = "SELECT pg_try_advisory_lock(%s, %s)"
        return asleep.execute(query, [lock_class("bell", TABLE), lane]).fetchone() == (True,)

    def rings(self) -> int:
        """How often it rang so far: what came before a mark that is sent now."""
        with self._database.connect() as other:
            other.execute("SELECT pg_notify(%s, 'mark')", [bell_channel(TABLE)])
        for count, notify in enumerate(self._listener.notifies(timeout=10)):
            if notify.payload == "mark":
                return count
        raise AssertionError("the mark did not arrive")


@pytest.fixture(params=["trigger", "enqueue"])
def street(request: pytest.FixtureRequest, database: Database) -> Street:
    return Street(database, trigger=request.param == "trigger")


def test_it_is_silent_while_everybody_is_awake(street: Street) -> None:
    street.write()
    street.write(events=3)

    assert street.rings() == 0


@pytest.mark.parametrize("lane", range(LANES))
def test_it_rings_once_a_statement_when_a_lane_is_asleep(street: Street, lane: int) -> None:
    assert street.fall_asleep(lane)

    street.write(events=3)

    assert street.rings() == 1


def test_it_does_not_know_lanes_beyond_its_number(street: Street) -> None:
    assert street.fall_asleep(LANES)

    street.write()

    assert street.rings() == 0


def test_it_rings_with_the_commit_and_not_after_a_rollback(street: Street) -> None:
    assert street.fall_asleep(0)

    with street.writer.transaction():
        street.write()
        assert street.rings() == 0
    assert street.rings() == 1
    with street.writer.transaction(force_rollback=True):
        street.write()
    assert street.rings() == 0


def test_nobody_falls_asleep_beside_a_writer_in_progress(street: Street) -> None:
    with street.writer.transaction():
        street.write()
        assert not street.fall_asleep(0)
        assert not street.fall_asleep(1)
    assert street.fall_asleep(0)
    assert street.fall_asleep(1)


def test_the_installed_number_of_lanes_is_read_back_and_can_be_changed(database: Database) -> None:
    conn = database.connect()
    conn.execute(ddl(TABLE))
    assert installed_lanes(conn, TABLE) == 0

    for lanes in (3, 64, 1):
        conn.execute(doorbell_ddl(TABLE, lanes))
        assert installed_lanes(conn, TABLE) == lanes

    conn.execute("ALTER TABLE openoutbox_events DISABLE TRIGGER outspark_doorbell")
    assert installed_lanes(conn, TABLE) == 0


def test_removal_leaves_nothing_behind(database: Database) -> None:
    conn = database.connect()
    conn.execute(ddl(TABLE))
    conn.execute(doorbell_ddl(TABLE, 2))

    conn.execute(removal_ddl(TABLE))
    conn.execute(removal_ddl(TABLE))

    assert conn.execute("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal").fetchone() == (0,)
    assert conn.execute("SELECT count(*) FROM pg_proc WHERE proname LIKE '%doorbell'").fetchone() == (0,)


def test_every_spelling_of_a_table_leads_to_the_same_bell(database: Database) -> None:
    conn = database.connect()
    conn.execute("CREATE SCHEMA sales")
    conn.execute(ddl(TableName("outbox", "sales")))
    conn.execute("SET search_path TO sales, public")

    tables = [resolve(conn, TableName.parse(text)) for text in ("outbox", "SALES.Outbox", '"sales"."outbox"')]

    assert tables == [TableName("outbox", "sales")] * 3
    assert doorbell_ddl(TableName("outbox"), 1) == doorbell_ddl(TableName("outbox", "public"), 1)


@pytest.mark.parametrize(
    "make",
    [lambda: doorbell_ddl(TABLE, 0), lambda: doorbell_ddl(TABLE, 65), lambda: Outbox(str(TABLE), ring=-1)],
)
def test_the_number_of_lanes_has_bounds(make: Callable[[], object]) -> None:
    with pytest.raises(SettingsError, match="allowed: 1 to 64"):
        make()


def test_ringing_from_enqueue_needs_the_schema() -> None:
    with pytest.raises(SettingsError, match=r"write for instance public\.openoutbox_events"):
        Outbox(ring=2)
