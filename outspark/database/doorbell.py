"""The doorbell: a trigger that wakes lanes on insert, but only when one of them says it is asleep.

Lane number n sleeps under the exclusive session lock `(lock_class("bell", table), n)`. A writer tries all
these locks in shared mode until its transaction ends. Where it gets them all, nobody is asleep and nobody
needs to be told: a lane that falls asleep later does so after the writer's commit, and looks once more.
Where it fails, it rings.
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

NOBODY_ASLEEP = "pg_try_advisory_xact_lock_shared({lock_class}, {lane})"

CREATE_FUNCTION = """\
-- Rings once; the lanes of this table listen on the channel
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $bell$
BEGIN
    PERFORM pg_catalog.pg_notify({channel}, '');
    RETURN NULL;
END
$bell$"""

CREATE_TRIGGER = """\
-- Rings only when a lane is asleep, which is when one of its locks cannot be shared
CREATE TRIGGER {trigger} AFTER INSERT ON {table} FOR EACH STATEMENT
    WHEN (NOT ({nobody_asleep}))
    EXECUTE FUNCTION {function}()"""

DROP_TRIGGER = "DROP TRIGGER IF EXISTS {trigger} ON {table}"

DROP_FUNCTION = "DROP FUNCTION IF EXISTS {function}()"

READ_TRIGGER = """\
-- The doorbell as it is installed, unless it is switched off
SELECT pg_get_triggerdef(oid) FROM pg_catalog.pg_trigger
WHERE tgrelid = to_regclass(%(table)s) AND tgname = %(trigger)s AND tgenabled <> 'D'"""


def statements(table: TableName, lanes: int) -> list[str]:
    """Install the doorbell for lanes 0 to `lanes` - 1, or change their number; further lanes poll."""
    table = table.within("public")
    names = _names(table)
    nobody = nobody_asleep(table, lanes)
    create = [
        sql.SQL(CREATE_FUNCTION).format(channel=sql.Literal(bell_channel(table)), **names),
        sql.SQL(DROP_TRIGGER).format(**names),
        sql.SQL(CREATE_TRIGGER).format(nobody_asleep=nobody, **names),
    ]
    return [statement.as_string(None) for statement in create]


def removal_statements(table: TableName) -> list[str]:
    names = _names(table.within("public"))
    return [sql.SQL(drop).format(**names).as_string(None) for drop in (DROP_TRIGGER, DROP_FUNCTION)]


def doorbell_ddl(table: TableName, lanes: int) -> str:
    """The doorbell as a script for psql. A table without a schema is taken to be in `public`."""
    return ";\n\n".join(statements(table, lanes)) + ";\n"


def removal_ddl(table: TableName) -> str:
    return ";\n".join(removal_statements(table)) + ";\n"


def nobody_asleep(table: TableName, lanes: int) -> sql.Composed:
    """True when no lane is asleep; as a side effect none can fall asleep until this transaction ends."""
    if not 1 <= lanes <= MAX_LANES:
        raise SettingsError(f"doorbell lanes = {lanes} is out of range; allowed: 1 to {MAX_LANES}")
    number = sql.Literal(lock_class("bell", table))
    locks = (
        sql.SQL(NOBODY_ASLEEP).format(lock_class=number, lane=sql.Literal(lane)) for lane in range(lanes)
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
