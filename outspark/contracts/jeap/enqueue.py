"""The service's side of a jEAP outbox: messages are inserted, held before the commit and marked after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from psycopg import sql

from outspark.contracts.jeap.table import FAIL_REASONS, UNSENT, order_key, sequence
from outspark.contracts.jeap.trace import Form, TraceColumns, headers
from outspark.database.names import TableName
from outspark.event import Event
from outspark.outcome import DeadKind

# jEAP leaves schedule_after empty until just before the commit. The INSERT writes it, and HOLD writes it again: without
# the first, the relay would never get a message whose commit the service does not see.
INSERT = """
-- Put messages into the outbox: their ids rise in the given order
INSERT INTO {table}
  (id, message, "key", cluster_name, topic, message_id, message_idempotence_id, message_type_name,
   message_type_version, created, send_immediately, schedule_after, resend,
   trace_id_high, trace_id, span_id, parent_span_id, trace_id_string, sampled)
SELECT nextval({sequence}), m.message, m.key, m.cluster, m.topic, m.message_id, m.idempotence_id, m.type,
       m.version, clock_timestamp(), CAST({immediate} AS boolean),
       clock_timestamp() + CAST({seconds} AS double precision) * interval '1 second', false,
       CAST({trace_id_high} AS bigint), CAST({trace_id} AS bigint), CAST({span_id} AS bigint),
       CAST({parent_span_id} AS bigint), CAST({trace_id_string} AS text), CAST({sampled} AS boolean)
FROM unnest(
  CAST({messages} AS bytea[]), CAST({keys} AS bytea[]), CAST({clusters} AS text[]), CAST({topics} AS text[]),
  CAST({message_ids} AS text[]), CAST({idempotence_ids} AS text[]), CAST({types} AS text[]),
  CAST({versions} AS text[])
) WITH ORDINALITY AS m(message, key, cluster, topic, message_id, idempotence_id, type, version, position)
ORDER BY m.position
RETURNING id, created"""

HOLD = """
-- Before the commit: until when the relay leaves these messages to the process that sends them immediately
UPDATE {table}
SET schedule_after = (SELECT clock_timestamp()) + CAST({seconds} AS double precision) * interval '1 second'
WHERE id = ANY(CAST({ids} AS bigint[]))
RETURNING id"""

MARK = """
-- After the commit: sent immediately, or failed for a reason; what the relay has settled meanwhile stays as it is
UPDATE {table} e
SET sent_immediately = CASE WHEN o.reason IS NULL THEN clock_timestamp() END,
    failed = CASE WHEN o.reason IS NOT NULL THEN clock_timestamp() END,
    fail_reason = o.reason
FROM unnest(CAST({ids} AS bigint[]), CAST({reasons} AS text[])) AS o(id, reason)
WHERE e.id = o.id AND {unsent}
RETURNING e.id"""


class Row(NamedTuple):
    """One message as it goes into the table, in the order of the statement's arrays."""

    message: bytes
    key: bytes | None
    cluster: str | None
    topic: str
    message_id: str
    idempotence_id: str
    type: str
    version: str | None


ARRAYS: Final = (
    "messages",
    "keys",
    "clusters",
    "topics",
    "message_ids",
    "idempotence_ids",
    "types",
    "versions",
)
INSERT_PARAMETERS: Final = ("immediate", "seconds", *TraceColumns._fields, *ARRAYS)
HOLD_PARAMETERS: Final = ("ids", "seconds")
MARK_PARAMETERS: Final = ("ids", "reasons")

Placeholder = Callable[[str], sql.Composable]


def insert_sql(table: TableName, placeholder: Placeholder) -> str:
    """The statement, with `placeholder` for each parameter; it returns id and time of each message."""
    return _compose(INSERT, table, INSERT_PARAMETERS, placeholder)


def hold_sql(table: TableName, placeholder: Placeholder) -> str:
    """It returns the ids that still exist: a savepoint that was rolled back has removed its own."""
    return _compose(HOLD, table, HOLD_PARAMETERS, placeholder)


def mark_sql(table: TableName, placeholder: Placeholder) -> str:
    """It returns the ids that were still unsent."""
    return _compose(MARK, table, MARK_PARAMETERS, placeholder)


def insert_params(rows: Sequence[Row], trace: TraceColumns, seconds: float | None) -> dict[str, Any]:
    """For `seconds` the relay leaves the messages to their sender; with None it may send them immediately."""
    arrays = {name: [row[index] for row in rows] for index, name in enumerate(ARRAYS)}
    return {"immediate": seconds is not None, "seconds": seconds, **trace._asdict(), **arrays}


def hold_params(events: Sequence[Event], seconds: float) -> dict[str, Any]:
    return {"ids": [int(event.id) for event in events], "seconds": seconds}


def mark_params(fates: Mapping[str, DeadKind | None]) -> dict[str, Any]:
    """`fates` has for each message's id the kind of its failure, or None if it was sent."""
    reasons = [None if kind is None else FAIL_REASONS[kind] for kind in fates.values()]
    return {"ids": [int(id) for id in fates], "reasons": reasons}


def events(
    answers: Iterable[tuple[int, datetime]], rows: Sequence[Row], trace: TraceColumns, form: Form
) -> list[Event]:
    """The messages as a lane would read them, in the order of their ids, from the rows that the INSERT returned."""
    carried = headers(trace, form)
    return [
        Event(
            id=str(id),
            type=row.topic,
            key=None if row.key is None else row.key.decode(errors="surrogateescape"),
            payload=row.message,
            headers=carried,
            attempts=0,
            created_at=created,
            order_key=order_key(row.key, row.topic),
            cluster=row.cluster,
            message_id=row.message_id,
        )
        for (id, created), row in zip(sorted(answers), rows, strict=True)
    ]


def _compose(template: str, table: TableName, parameters: Sequence[str], placeholder: Placeholder) -> str:
    placeholders = {name: placeholder(name) for name in parameters}
    ids = sql.Literal(sequence(table).identifier.as_string(None))
    statement = sql.SQL(template).format(
        table=table.identifier, sequence=ids, unsent=sql.SQL(UNSENT), **placeholders
    )
    return statement.as_string(None).strip()
