"""The table `outspark_attempts` and its statements, for contracts whose rows have no column for attempts.

It holds a row only for an event that was in flight when its lane crashed or disconnected.
"""

from __future__ import annotations

from psycopg import sql

from outspark.database.names import TableName

ATTEMPTS_TABLE = "outspark_attempts"

CREATE = """\
-- How often an event was in flight when its lane crashed: an event that crashes its lane must become dead eventually.
CREATE TABLE IF NOT EXISTS {attempts_table} (
    source text NOT NULL,
    event_id text NOT NULL,
    attempts integer NOT NULL,
    error text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (source, event_id)
)"""

FORGET = """\
-- Reset the attempts of these events.
DELETE FROM {attempts_table} WHERE source = %(source)s AND event_id = ANY(%(ids)s::text[])"""


def attempts_table(outbox: TableName) -> TableName:
    """The table is in the schema of the outbox."""
    return TableName(ATTEMPTS_TABLE, outbox.schema)


def compose(template: str, outbox: TableName) -> str:
    return sql.SQL(template).format(attempts_table=attempts_table(outbox).identifier).as_string(None)
