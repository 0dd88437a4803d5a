"""`outspark_attempts`, the small table of ours for contracts whose rows have no room for attempts, and its statements.

It holds a row only for an event that was in flight when its lane vanished.
"""

from __future__ import annotations

from psycopg import sql

from outspark.database.names import TableName

ATTEMPTS_TABLE = "outspark_attempts"

CREATE = """\
-- How often an event was in flight when its lane vanished: one that kills its lane must come to an end.
CREATE TABLE IF NOT EXISTS {attempts_table} (
    source text NOT NULL,
    event_id text NOT NULL,
    attempts integer NOT NULL,
    error text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (source, event_id)
)"""

FORGET = """\
-- These events begin anew.
DELETE FROM {attempts_table} WHERE source = %(source)s AND event_id = ANY(%(ids)s::text[])"""


def attempts_table(outbox: TableName) -> TableName:
    """It lives beside the outbox, in the same schema."""
    return TableName(ATTEMPTS_TABLE, outbox.schema)


def compose(template: str, outbox: TableName) -> str:
    return sql.SQL(template).format(attempts_table=attempts_table(outbox).identifier).as_string(None)
