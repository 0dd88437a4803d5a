"""The tables of a jEAP outbox, written down once: `deferred_message` with its sequence, and `shedlock`.

Names, types and indexes are jEAP's, so that a Java service and its relay work on them too; `READY` alone is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from psycopg import sql

from outspark.contracts.names import TableName
from outspark.contracts.shape import Column, Index, Shape, script
from outspark.outcome import DeadKind

if TYPE_CHECKING:
    import sqlalchemy

DEFAULT_TABLE = TableName("deferred_message")
SHEDLOCK = TableName("shedlock")

CREATE_SEQUENCE = """\
-- Ids in the order of writing
CREATE SEQUENCE IF NOT EXISTS {sequence} START WITH 1 INCREMENT 1"""

DROP = ("DROP TABLE {table}", "DROP SEQUENCE {sequence}")

FAIL_REASONS: Final[Mapping[DeadKind, str]] = {
    "topic": "INVALID_TOPIC",
    "permission": "UNAUTHORIZED_ON_TOPIC",
    "size": "MESSAGE_TOO_LARGE",
    "other": "GENERAL",
}

UNSENT = "sent_immediately IS NULL AND sent_scheduled IS NULL AND failed IS NULL"

_TIME = "timestamp with time zone"
_INDEXED = (
    "created",
    "send_immediately",
    "schedule_after",
    "sent_immediately",
    "sent_scheduled",
    "failed",
    "resend",
)


def _name_index(table: TableName, index: Index) -> str:
    return table.sibling(index.purpose).table


SHAPE = Shape(
    purpose="The outbox: one row per message, written in the transaction that makes it true",
    columns=(
        Column("id", "bigint"),
        Column("message", "bytea"),
        Column("key", "bytea", nullable=True),
        Column("cluster_name", "character varying", nullable=True),
        Column("topic", "character varying"),
        Column("message_id", "character varying"),
        Column("message_idempotence_id", "character varying"),
        Column("message_type_name", "character varying"),
        Column("message_type_version", "character varying", nullable=True),
        Column("created", _TIME),
        Column("send_immediately", "boolean", nullable=True),
        Column("schedule_after", _TIME, nullable=True),
        Column("sent_immediately", _TIME, nullable=True),
        Column("sent_scheduled", _TIME, nullable=True),
        Column("failed", _TIME, nullable=True),
        Column("fail_reason", "character varying", nullable=True),
        Column("resend", "boolean", default="false", nullable=True),
        Column("trace_id_high", "bigint", nullable=True),
        Column("trace_id", "bigint", nullable=True),
        Column("span_id", "bigint", nullable=True),
        Column("parent_span_id", "bigint", nullable=True),
        Column("trace_id_string", "character varying", nullable=True),
        Column("sampled", "boolean", nullable=True),
    ),
    primary_key=("id",),
    name_index=_name_index,
    indexes=tuple(Index(column, (column,)) for column in _INDEXED),
)

SHEDLOCK_SHAPE = Shape(
    purpose="Which task is done by whom and until when, as ShedLock keeps it",
    columns=(
        Column("name", "character varying(64)"),
        Column("lock_until", "timestamp without time zone"),
        Column("locked_at", "timestamp without time zone"),
        Column("locked_by", "character varying(255)"),
    ),
    primary_key=("name",),
    name_index=_name_index,
)

HEADER_SHAPE = Shape(
    purpose="Headers of messages: one row each, in the order to send them",
    columns=(
        Column("deferred_message_id", "bigint"),
        Column("header_index", "integer"),
        Column("header_name", "character varying(255)"),
        Column("header_value", "bytea", nullable=True),
    ),
    primary_key=("deferred_message_id", "header_index"),
    name_index=_name_index,
)
"""Only services with stored headers have it. It is theirs: we read it and never make it."""

READY = Index(
    "outspark_ready",
    ("id",),
    where=f"({UNSENT}) OR resend",
    printed="(((sent_immediately IS NULL) AND (sent_scheduled IS NULL) AND (failed IS NULL)) OR resend)",
)
"""What waits, in order. Without it, looking for what is ready walks over every message that was ever sent."""


def order_key(key: bytes | None, topic: str) -> str:
    """What order is kept by, as the statements of a lane have it too: messages without a key keep it by their topic."""
    return f"/{topic}" if key is None else key.hex()


def sequence(table: TableName) -> TableName:
    return table.sibling("sequence")


def shedlock(table: TableName) -> TableName:
    """It lives beside the outbox, in the same schema."""
    return TableName(SHEDLOCK.table, table.schema)


def header_table(table: TableName) -> TableName:
    return table.sibling("header")


def statements(table: TableName = DEFAULT_TABLE) -> list[str]:
    """The DDL, one statement each, in the order to run them. A `shedlock` that is there already is left alone."""
    create_sequence = sql.SQL(CREATE_SEQUENCE).format(sequence=sequence(table).identifier).as_string(None)
    return [create_sequence, *SHAPE.statements(table), *SHEDLOCK_SHAPE.statements(shedlock(table))]


def ddl(table: TableName = DEFAULT_TABLE) -> str:
    """The DDL as a script for psql."""
    return script(statements(table))


def ready_index(table: TableName, how: str = "IF NOT EXISTS ") -> str:
    return SHAPE.create_index(table, READY, how)


def drop_statements(table: TableName = DEFAULT_TABLE) -> list[str]:
    """Without `shedlock`, which other tasks of the service may use."""
    names = {"table": table.identifier, "sequence": sequence(table).identifier}
    return [sql.SQL(statement).format(**names).as_string(None) for statement in DROP]


def metadata(
    table: TableName = DEFAULT_TABLE,
    metadata: sqlalchemy.MetaData | None = None,
    *,
    with_ready_index: bool = False,
) -> sqlalchemy.Table:
    """Both tables and the sequence for SQLAlchemy and Alembic's autogenerate; answers the outbox.

    Where our index is there it has to be part of this, or autogenerate would drop it.
    """
    import sqlalchemy as sa

    home = sa.MetaData() if metadata is None else metadata
    ids, lock = sequence(table), shedlock(table)
    sa.Sequence(ids.table, metadata=home, schema=ids.schema)
    if not any((known.schema, known.name) == (lock.schema, lock.table) for known in home.tables.values()):
        SHEDLOCK_SHAPE.metadata(lock, home)
    shape = replace(SHAPE, indexes=(*SHAPE.indexes, READY)) if with_ready_index else SHAPE
    return shape.metadata(table, home)
