"""jEAP's tables: their shape, and how an existing table is compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from psycopg import sql

from outspark.database.names import TableName
from outspark.database.shape import Column, Index, Shape, script
from outspark.outcome import DeadKind

if TYPE_CHECKING:
    import sqlalchemy
import json
from collections.abc import Collection, Iterator
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from outspark.database.check import Finding, Found, alter, compare, covers, look_up
from outspark.database.names import resolve

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


MANY = 100_000
"""Rows from which on a walk over all that was sent is felt."""

ROWS = """\
-- How many rows the planner believes the table to have
SELECT greatest(reltuples, 0)::bigint FROM pg_catalog.pg_class WHERE oid = to_regclass(%(name)s)"""

REFERRING = """\
-- The tables that refer to a table by a foreign key
SELECT DISTINCT n.nspname, c.relname
FROM pg_catalog.pg_constraint f
JOIN pg_catalog.pg_class c ON c.oid = f.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE f.confrelid = to_regclass(%(name)s) AND f.contype = 'f' AND f.conparentid = 0 AND f.conrelid <> f.confrelid
ORDER BY 1, 2"""


def check_table(
    conn: psycopg.Connection[Any], table: TableName, ignore: Collection[str] = ()
) -> list[Finding]:
    """Every difference that matters, errors first; none for tables made by `ddl` while they are small.

    `ignore` names columns and side tables of the service's own that say nothing about how a message is sent.
    """
    table = resolve(conn, table)
    found, headers = look_up(conn, table), look_up(conn, header_table(table))
    findings = [
        *compare(table, SHAPE, found),
        *_headers(table, headers),
        *_unknown([*_unknown_columns(table, found, headers), *_unknown_tables(conn, table)], ignore),
        *_lock(conn, table),
        *_ready(conn, table, found),
    ]
    return sorted(findings, key=lambda finding: finding.level)


def _headers(table: TableName, found: Found) -> Iterator[Finding]:
    header = header_table(table)
    for finding in compare(header, HEADER_SHAPE, found) if found.columns else ():
        yield replace(finding, problem=f"table {header}: {finding.problem}")


def _unknown(names: list[str], ignore: Collection[str]) -> Iterator[Finding]:
    """One finding for all of them, so that its remedy is the whole setting."""
    if unknown := [name for name in names if name not in ignore]:
        problem = (
            f"unknown to this contract: {', '.join(unknown)}; what they say about sending would be lost, so stay with "
            "the service's own relay, or, if they say nothing about it, name them in the settings of the source"
        )
        setting = f"jeap.ignore = {json.dumps([*ignore, *unknown], ensure_ascii=False)}"
        yield Finding("error", problem, setting, verb="set")


def _unknown_columns(table: TableName, found: Found, headers: Found) -> Iterator[str]:
    """`tenant`, and `deferred_message_header.tenant`."""
    yield from sorted(found.columns.keys() - {column.name for column in SHAPE.columns})
    for name in sorted(headers.columns.keys() - {column.name for column in HEADER_SHAPE.columns}):
        yield f"{header_table(table).table}.{name}"


def _unknown_tables(conn: psycopg.Connection[Any], table: TableName) -> Iterator[str]:
    """`audit`, and `other.audit` where it is in another schema."""
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        rows = cursor.execute(REFERRING, {"name": table.identifier.as_string(conn)}).fetchall()
    for schema, name in rows:
        if (side := TableName(name, schema)) != header_table(table):
            yield name if schema == table.schema else str(side)


def _lock(conn: psycopg.Connection[Any], table: TableName) -> Iterator[Finding]:
    lock = shedlock(table)
    found = look_up(conn, lock)
    if not found.columns:
        remedy = SHEDLOCK_SHAPE.create_table(lock) + ";"
        yield Finding("error", f"table {lock} is missing: nothing would keep two relays apart", remedy)
        return
    # A wider name or a coarser time is the service's own business: ShedLock works with them, and so do we.
    for column in SHEDLOCK_SHAPE.columns:
        if column.name not in found.columns:
            remedy = SHEDLOCK_SHAPE.create_table(lock) + ";"
            yield Finding("error", f"table {lock} has no column {column.name}: it is not ShedLock's", remedy)
        elif found.columns[column.name].type.endswith("with time zone"):
            # ShedLock writes times without a zone, and PostgreSQL takes them for those of the session's zone.
            problem = (
                f"column {column.name} of {lock} has a time zone: relays see each other's lock only in UTC"
            )
            change = f"ALTER COLUMN {column.name} TYPE timestamp USING {column.name} AT TIME ZONE 'UTC'"
            yield Finding("warning", problem, alter(lock, change))


def _ready(conn: psycopg.Connection[Any], table: TableName, found: Found) -> Iterator[Finding]:
    if covers(READY, found):
        return
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        row = cursor.execute(ROWS, {"name": table.identifier.as_string(conn)}).fetchone()
    if row is not None and row[0] >= MANY:
        yield Finding(
            "warning",
            "without an index on unsent messages every claim reads all sent messages as well",
            ready_index(table, "CONCURRENTLY IF NOT EXISTS ") + ";",
        )
