"""`outspark_deliveries`, the small table of ours for events that go to several destinations, and its statements.

It holds a row only while an event has reached some of its destinations and not all of them.
"""

from __future__ import annotations

from psycopg import sql

from outspark.contracts.names import TableName

DELIVERIES_TABLE = "outspark_deliveries"

CREATE = """\
-- Which destinations already have an event that is not through everywhere yet.
CREATE TABLE IF NOT EXISTS {deliveries_table} (
    source text NOT NULL,
    event_id text NOT NULL,
    destination text NOT NULL,
    delivered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (source, event_id, destination)
)"""

LOOK_UP = """\
-- Where have these events been already?
SELECT event_id, destination FROM {deliveries_table}
WHERE source = %(source)s AND event_id = ANY(%(ids)s::text[])"""

RECORD = """\
-- Remember where these events have been.
INSERT INTO {deliveries_table} (source, event_id, destination)
SELECT %(source)s, * FROM unnest(%(ids)s::text[], %(destinations)s::text[])
ON CONFLICT DO NOTHING"""

FORGET = """\
-- These events are through everywhere.
DELETE FROM {deliveries_table} WHERE source = %(source)s AND event_id = ANY(%(ids)s::text[])"""


def deliveries_table(outbox: TableName) -> TableName:
    """It lives beside the outbox, in the same schema."""
    return TableName(DELIVERIES_TABLE, outbox.schema)


def compose(template: str, outbox: TableName) -> str:
    return sql.SQL(template).format(deliveries_table=deliveries_table(outbox).identifier).as_string(None)
