"""The doorbell: a trigger that wakes lanes on insert, but only when at least one lane is asleep.

A sleeping lane n holds the exclusive session lock `(lock_class("bell", table), n)`. The trigger tries to take all these
locks in shared mode until the end of the writer's transaction. If it gets all of them, no lane is asleep, and no NOTIFY
is needed: a lane gets its lock only after the writer's commit, and polls once more before it sleeps. If the trigger
fails to get one, a lane is asleep, and the trigger sends the NOTIFY.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from outspark.database.names import TableName, bell_channel, lock_class
from outspark.errors import SettingsError

MAX_LANES = 64
TRIGGER = "outspark_doorbell"

NO_LANE_ASLEEP = "pg_try_advisory_xact_lock_shared({lock_class}, {lane})"

CREATE_FUNCTION = """\
-- Notify the lanes of this table, which listen on the channel
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $bell$
BEGIN
    PERFORM pg_catalog.pg_notify({channel}, '');
    RETURN NULL;
END
$bell$"""

CREATE_TRIGGER = """\
-- Fires only when a lane is asleep: then the lock of that lane cannot be shared
CREATE TRIGGER {trigger} AFTER INSERT ON {table} FOR EACH STATEMENT
    WHEN (NOT ({no_lane_asleep}))
    EXECUTE FUNCTION {function}()"""

DROP_TRIGGER = "DROP TRIGGER IF EXISTS {trigger} ON {table}"

DROP_FUNCTION = "DROP FUNCTION IF EXISTS {function}()"

READ_TRIGGER = """\
-- The definition of the installed doorbell, unless it is disabled
SELECT pg_get_triggerdef(oid) FROM pg_catalog.pg_trigger
WHERE tgrelid = to_regclass(%(table)s) AND tgname = %(trigger)s AND tgenabled <> 'D'"""


def statements(table: TableName, lanes: int) -> list[str]:
    """Install the doorbell for lanes 0 to `lanes` - 1, or change their number. Lanes beyond that only poll."""
    table = table.within("public")
    names = _names(table)
    no_lane = no_lane_asleep(table, lanes)
    create = [
        sql.SQL(CREATE_FUNCTION).format(channel=sql.Literal(bell_channel(table)), **names),
        sql.SQL(DROP_TRIGGER).format(**names),
        sql.SQL(CREATE_TRIGGER).format(no_lane_asleep=no_lane, **names),
    ]
    return [statement.as_string(None) for statement in create]


def removal_statements(table: TableName) -> list[str]:
    names = _names(table.within("public"))
    return [sql.SQL(drop).format(**names).as_string(None) for drop in (DROP_TRIGGER, DROP_FUNCTION)]


def doorbell_ddl(table: TableName, lanes: int) -> str:
    """The doorbell as a script for psql. A table name without a schema means the schema `public`."""
    return ";\n\n".join(statements(table, lanes)) + ";\n"


def removal_ddl(table: TableName) -> str:
    return ";\n".join(removal_statements(table)) + ";\n"


def no_lane_asleep(table: TableName, lanes: int) -> sql.Composed:
    """SQL that is true when no lane is asleep. As a side effect no lane can fall asleep until the transaction ends."""
    if not 1 <= lanes <= MAX_LANES:
        raise SettingsError(f"doorbell lanes = {lanes} is out of range; allowed: 1 to {MAX_LANES}")
    number = sql.Literal(lock_class("bell", table))
    locks = (
        sql.SQL(NO_LANE_ASLEEP).format(lock_class=number, lane=sql.Literal(lane)) for lane in range(lanes)
    )
    return sql.SQL(" AND ").join(locks)


def installed_lanes(conn: psycopg.Connection[Any], table: TableName) -> int:
    """How many lanes the installed doorbell wakes; 0 when there is none. `table` is resolved."""
    parameters = {"table": table.identifier.as_string(conn), "trigger": TRIGGER}
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        row = cursor.execute(READ_TRIGGER, parameters).fetchone()
    return 0 if row is None else str(row[0]).count("pg_try_advisory_xact_lock_shared(")


def _names(table: TableName) -> dict[str, sql.Composable]:
    return {
        "table": table.identifier,
        "trigger": sql.Identifier(TRIGGER),
        "function": table.sibling("doorbell").identifier,
    }
