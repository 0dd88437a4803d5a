"""Keys that must not be claimed now, as a condition on rows."""

from __future__ import annotations

from psycopg import sql

# Not `<> ALL(...)`: there the planner weighs each of the keys against its statistics, for longer than the claim takes.
_NOT_BLOCKED = """\
(cardinality(%(blocked)s::text[]) = 0 OR {key} IS NULL
    OR {key} NOT IN (SELECT k FROM unnest(%(blocked)s::text[]) AS k))"""


def not_blocked(key: sql.Composable) -> sql.Composed:
    """`key` is none of the parameter `blocked`; an event without a key is never blocked by one."""
    return sql.SQL(_NOT_BLOCKED).format(key=key)
