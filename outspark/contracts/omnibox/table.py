"""omni-box's tables, plain and partitioned: their shape, and how an existing table is compared with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from psycopg import sql

from outspark.database.names import TableName
from outspark.database.shape import Column, Index, Shape, script

if TYPE_CHECKING:
    import sqlalchemy
from collections.abc import Iterator
from datetime import date
from typing import Any

import psycopg
from psycopg.rows import class_row

from outspark.database.check import Finding, Found, alter, compare, covers, look_up
from outspark.database.names import resolve

PARTITION_KEY: Final = "created_at"
DROP_TABLE = "DROP TABLE {table}"

_TIME = "timestamp with time zone"
# In a session that is not in UTC this is not the time it is: whatever we write has its times written by us.
_NOW = "timezone('UTC', now())"


def _text(name: str, length: int, *, nullable: bool = True) -> Column:
    return Column(name, f"character varying({length})", nullable=nullable)


_FIRST = (Column("id", "uuid"), _text("event_type", 100, nullable=False))
_OF_OUTBOX = (
    _text("aggregate_type", 50, nullable=False),
    Column("aggregate_id", "uuid"),
    _text("topic", 255, nullable=False),
    _text("partition_key", 255, nullable=False),
)
_OF_INBOX = (
    _text("message_id", 255, nullable=False),
    _text("consumer_group", 255, nullable=False),
    _text("source", 255, nullable=False),
)
_LAST = (
    Column("payload", "jsonb"),
    Column("headers", "jsonb", nullable=True),
    _text("trace_id", 64),
    _text("idempotency_key", 128),
    _text("correlation_id", 64),
    _text("causation_id", 64),
    _text("schema_version", 50),
    Column("status", "character varying(20)", default="'pending'"),
    Column("attempts_made", "integer", default="0"),
    Column("max_attempts", "integer", default="6"),
    _text("last_error", 2000),
    Column("scheduled_at", _TIME),
    Column("completed_at", _TIME, nullable=True),
    Column("locked_at", _TIME, nullable=True),
    _text("locked_by", 255),
    Column("created_at", _TIME, default=_NOW),
    Column("updated_at", _TIME, default=_NOW, nullable=True),
)
COLUMNS: Final = (*_FIRST, *_OF_OUTBOX, *_OF_INBOX, *_LAST)
"""Of both tables, in their order."""

CHECKS: Final = (
    ("attempts_valid", "attempts_made <= max_attempts"),
    (
        "completed_status_consistency",
        "(status = 'completed' AND completed_at IS NOT NULL) OR (status <> 'completed' AND completed_at IS NULL)",
    ),
    (
        "lock_consistency",
        "(locked_at IS NULL AND locked_by IS NULL) OR (locked_at IS NOT NULL AND locked_by IS NOT NULL)",
    ),
)

_STATUS = "((status)::text = '{}'::text)"
DEDUPLICATION: Final = Index("deduplication", ("message_id", "consumer_group"), unique=True)
IDEMPOTENCY: Final = Index(
    "idempotency_key", ("idempotency_key",), "idempotency_key IS NOT NULL", unique=True
)
_INDEXES = (
    Index(
        "pending_fetch",
        ("scheduled_at",),
        "status = 'pending' AND locked_at IS NULL AND attempts_made < max_attempts",
        f"({_STATUS.format('pending')} AND (locked_at IS NULL) AND (attempts_made < max_attempts))",
    ),
    Index("locked_at", ("locked_at",), "locked_at IS NOT NULL"),
    Index(
        "completed_cleanup",
        ("completed_at",),
        "status = 'completed' AND completed_at IS NOT NULL",
        f"({_STATUS.format('completed')} AND (completed_at IS NOT NULL))",
    ),
    IDEMPOTENCY,
    Index("created_at", ("created_at",)),
    Index("updated_at", ("updated_at",)),
)

READY: Final = Index(
    "outspark_ready",
    ("status", "created_at", "id"),
    "status <> 'completed'",
    "((status)::text <> 'completed'::text)",
)
"""What is not completed, in order. Without it, looking for the oldest and for the dead reads much that is completed."""

_OWN_TABLES = ("outbox_events", "inbox_events", "outbox_events_partitioned", "inbox_events_partitioned")
_STEMS = {"outbox_events_partitioned": "outbox_events_p", "inbox_events_partitioned": "inbox_events_p"}


def named_by_stem(stem: str) -> TableName:
    """The table whose indexes and CHECKs have their names from this."""
    return TableName(next((table for table, short in _STEMS.items() if short == stem), stem))


def _conventional(table: TableName, index: Index) -> str:
    """omni-box's own name for its four tables, and the same pattern for any other."""
    if (table.table, index.purpose) == ("inbox_events", DEDUPLICATION.purpose):
        return "idx_inbox_deduplication"
    return TableName(_STEMS.get(table.table, table.table)).sibling(index.purpose, "idx_").table


_OWN_NAMES = {
    _conventional(TableName(name), index)
    for name in _OWN_TABLES
    for index in (*_INDEXES, READY, DEDUPLICATION)
}


def _name_index(table: TableName, index: Index) -> str:
    """Indexes of one schema share a namespace: a table called `inbox` must not take a name of omni-box's own."""
    name = _conventional(table, index)
    return f"{name}_" if name in _OWN_NAMES and table.table not in _OWN_TABLES else name


def _name_check(table: TableName, check: str) -> str:
    return TableName(_STEMS.get(table.table, table.table)).sibling(check, "ck_").table


def _partitioned(shape: Shape) -> Shape:
    """The same table split by `created_at`, which stands in everything that is unique."""
    widened = (
        replace(index, columns=(*index.columns, PARTITION_KEY)) if index.unique else index
        for index in shape.indexes
    )
    return replace(
        shape,
        primary_key=(*shape.primary_key, PARTITION_KEY),
        indexes=tuple(widened),
        partition_by=f"RANGE ({PARTITION_KEY})",
    )


OUTBOX: Final = Shape(
    purpose="The outbox: one row per event, written in the transaction that makes it true",
    columns=(*_FIRST, *_OF_OUTBOX, *_LAST),
    primary_key=("id",),
    name_index=_name_index,
    indexes=_INDEXES,
    checks=CHECKS,
    name_check=_name_check,
)
INBOX: Final = Shape(
    purpose="The inbox: one row per message and consumer group, so that each is handled once",
    columns=(*_FIRST, *_OF_INBOX, *_LAST),
    primary_key=("id",),
    name_index=_name_index,
    indexes=(DEDUPLICATION, *_INDEXES),
    checks=CHECKS,
    name_check=_name_check,
)
PARTITIONED_OUTBOX: Final = _partitioned(OUTBOX)
PARTITIONED_INBOX: Final = _partitioned(INBOX)


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the four tables: its shape, and its name unless it is given another."""

    shape: Shape
    default_table: TableName

    def unique_columns(self, index: Index) -> tuple[str, ...]:
        """The columns that a unique index has on this table: what ON CONFLICT has to name."""
        return next(own.columns for own in self.shape.indexes if own.purpose == index.purpose)

    def statements(self, table: TableName | None = None, *, with_ready_index: bool = False) -> list[str]:
        """The DDL, one statement each, in the order to run them. `outspark partitions keep` makes the partitions."""
        name = table or self.default_table
        ready = [ready_index(name)] if with_ready_index else []
        return [*self.shape.statements(name), *ready]

    def ddl(self, table: TableName | None = None) -> str:
        """The DDL as a script for psql."""
        return script(self.statements(table))

    def drop_statements(self, table: TableName | None = None) -> list[str]:
        name = table or self.default_table
        return [sql.SQL(DROP_TABLE).format(table=name.identifier).as_string(None)]

    def metadata(
        self,
        table: TableName | None = None,
        metadata: sqlalchemy.MetaData | None = None,
        *,
        with_ready_index: bool = False,
    ) -> sqlalchemy.Table:
        """The table for SQLAlchemy and Alembic's autogenerate, in `metadata` or one of its own.

        Where our index is there it has to be part of this, or autogenerate would drop it.
        """
        import sqlalchemy as sa

        shape = with_ready(self.shape) if with_ready_index else self.shape
        return shape.metadata(table or self.default_table, sa.MetaData() if metadata is None else metadata)


_KINDS = {
    (False, False): Kind(OUTBOX, TableName("outbox_events")),
    (True, False): Kind(INBOX, TableName("inbox_events")),
    (False, True): Kind(PARTITIONED_OUTBOX, TableName("outbox_events_partitioned")),
    (True, True): Kind(PARTITIONED_INBOX, TableName("inbox_events_partitioned")),
}


def kind(*, inbox: bool = False, partitioned: bool = False) -> Kind:
    return _KINDS[inbox, partitioned]


def with_ready(shape: Shape) -> Shape:
    """The shape with our optional index."""
    return replace(shape, indexes=(*shape.indexes, READY))


def ready_index(table: TableName, how: str = "IF NOT EXISTS ") -> str:
    return OUTBOX.create_index(table, READY, how)


MANY = 100_000
"""Rows from which on it is felt that no index holds what is not completed, in order."""

# Of each CHECK, words that PostgreSQL writes for it in whatever form it was given.
_WORDS = {
    "attempts_valid": "attempts_made <= max_attempts",
    "completed_status_consistency": "completed_at IS NOT NULL",
    "lock_consistency": "locked_by IS NOT NULL",
}

# A table that neither has partitions nor is one has no tree.
LAYOUT = """\
-- Is the table partitioned, how many partitions and, as the planner believes, rows has it; and which month is it?
SELECT c.relkind = 'p' AS partitioned, count(r.oid) AS partitions,
       coalesce(sum(greatest(r.reltuples, 0)), 0)::bigint AS rows,
       date_trunc('month', now() AT TIME ZONE 'UTC')::date AS month,
       (date_trunc('month', now() AT TIME ZONE 'UTC') + interval '1 month')::date AS next_month
FROM pg_catalog.pg_class c
LEFT JOIN LATERAL (
  SELECT relid FROM pg_partition_tree(c.oid) UNION SELECT c.oid
) l ON true
LEFT JOIN pg_catalog.pg_class r ON r.oid = l.relid AND r.relkind <> 'p'
WHERE c.oid = to_regclass(%(name)s)
GROUP BY c.relkind"""

CREATE_PARTITION = "CREATE TABLE {partition} PARTITION OF {table} FOR VALUES FROM ({begin}) TO ({end});"


@dataclass(frozen=True, slots=True)
class Layout:
    """What statements and advice depend on; by default a table as omni-box makes it."""

    partitioned: bool = False
    partitions: int = 1
    rows: int = 0
    month: date = date.min
    next_month: date = date.max
    has_ready_index: bool = False


def look_at(conn: psycopg.Connection[Any], table: TableName, found: Found | None = None) -> Layout:
    """`table` is resolved."""
    with psycopg.Cursor(conn, row_factory=class_row(Layout)) as cursor:
        layout = cursor.execute(LAYOUT, {"name": table.identifier.as_string(conn)}).fetchone()
    assert layout is not None, "a resolved table is in the catalog"
    return replace(layout, has_ready_index=covers(READY, found or look_up(conn, table)))


def check_table(conn: psycopg.Connection[Any], table: TableName, *, inbox: bool = False) -> list[Finding]:
    """Every difference that matters, errors first; none for a table made by `ddl`, with partitions, while it is small.

    Whether it is partitioned is seen from the table itself.
    """
    table = resolve(conn, table)
    found = look_up(conn, table)
    layout = look_at(conn, table, found)
    shape = kind(inbox=inbox, partitioned=layout.partitioned).shape
    findings = [
        *map(_graded, compare(table, shape, found)),
        *_checks(table, shape, found.checks),
        *_partitions(table, layout),
        *_ready(table, layout),
    ]
    return sorted(findings, key=lambda finding: finding.level)


def _graded(finding: Finding) -> Finding:
    """Without the index that finds duplicates, messages would be handled twice."""
    vital = finding.lacks_index and "deduplication" in finding.problem
    return replace(finding, level="error") if vital else finding


def _checks(table: TableName, shape: Shape, checks: str) -> Iterator[Finding]:
    for name, condition in CHECKS:
        if _WORDS[name] not in checks:
            clause = shape.check_clause(table, name, condition).as_string(None)
            yield Finding("warning", f"no CHECK holds that {condition}", alter(table, f"ADD {clause}"))


def _partitions(table: TableName, layout: Layout) -> Iterator[Finding]:
    if layout.partitioned and not layout.partitions:
        partition = table.sibling(f"p{layout.month:%Y_%m}").identifier
        begin, end = (sql.Literal(f"{day:%Y-%m-%d} 00:00+00") for day in (layout.month, layout.next_month))
        remedy = sql.SQL(CREATE_PARTITION).format(
            partition=partition, table=table.identifier, begin=begin, end=end
        )
        yield Finding("warning", "it has no partitions, so nothing can be written", remedy.as_string(None))


def _ready(table: TableName, layout: Layout) -> Iterator[Finding]:
    if layout.rows >= MANY and not layout.has_ready_index:
        how = "IF NOT EXISTS " if layout.partitioned else "CONCURRENTLY IF NOT EXISTS "
        yield Finding(
            "warning",
            "without an index on unfinished events every query for dead or oldest events reads many completed ones",
            ready_index(table, how) + ";",
        )
