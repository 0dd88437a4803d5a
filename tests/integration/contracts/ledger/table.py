"""The table of a ledger."""

from __future__ import annotations

from outspark.database.names import TableName
from outspark.database.shape import Column, Index, Shape


def _name_index(table: TableName, index: Index) -> str:
    return table.sibling(index.purpose).table


SHAPE = Shape(
    purpose="The ledger: one row per entry",
    columns=(
        Column("no", "uuid"),
        Column("kind", "text"),
        Column("account", "text", nullable=True),
        Column("body", "bytea"),
        Column("notes", "jsonb", default="'{}'"),
        Column("state", "text", default="'open'"),
        Column("tries", "integer", default="0"),
        Column("why", "text", nullable=True),
        Column("due", "timestamp with time zone", default="clock_timestamp()"),
        Column("made", "timestamp with time zone", default="clock_timestamp()"),
        Column("ended", "timestamp with time zone", nullable=True),
    ),
    primary_key=("no",),
    name_index=_name_index,
    indexes=(Index("open", ("made",), "state = 'open'", "(state = 'open'::text)"),),
)
