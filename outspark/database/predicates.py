"""Conditions that the statements of all contracts share: hidden from the planner, blocked keys, the bound on bytes."""

from __future__ import annotations

from psycopg import sql

# Not `<> ALL(...)`: there the planner weighs each of the keys against its statistics, for longer than the claim takes.
_NOT_BLOCKED = """\
(cardinality(%(blocked)s::text[]) = 0 OR {key} IS NULL
    OR {key} NOT IN (SELECT k FROM unnest(%(blocked)s::text[]) AS k))"""


def not_blocked(key: sql.Composable) -> sql.Composed:
    """`key` is none of the parameter `blocked`; an event without a key is never blocked by one."""
    return sql.SQL(_NOT_BLOCKED).format(key=key)


def hide_from_planner(condition: sql.Composable) -> sql.Composed:
    """The same condition, out of the planner's sight.

    Bare, a condition on the state of known rows offers the planner an index of that state. Statistics from before the
    backlog make it look empty, and then each claim or settle compares all that waits with its ids.
    """
    return sql.SQL("coalesce({condition}, false)").format(condition=condition)


_TOTAL = """total AS MATERIALIZED (SELECT sum(n.size) > {most} AS cut FROM next n)"""

# Without ORDER BY: a materialised CTE is read in the order in which it was filled, and lanes are kept from sorting.
_FITS = """\
(NOT (SELECT cut FROM total) OR {id} IN (
    SELECT b.id FROM (
      SELECT {next_id} AS id, sum(n.size) OVER (ROWS UNBOUNDED PRECEDING) - n.size AS before FROM next n
    ) b WHERE b.before < {most}))"""

_CUT = """(SELECT cut FROM total)"""


def bounded(most: int, id: str) -> dict[str, sql.Composable]:
    """Parts for a statement whose rows have this id.

    `total` stands behind `next`, of which is kept what `fits`. `cut` tells that the bound was reached: more may wait.
    """
    parts = {"most": sql.Literal(most), "next_id": sql.Identifier("n", id)}
    return {
        "total": sql.SQL(_TOTAL).format(**parts),
        "fits": sql.SQL(_FITS).format(id=sql.Identifier("next", id), **parts),
        "cut": sql.SQL(_CUT),
    }


def size(column: str) -> str:
    """The bytes of a jsonb, as they are stored unless that is compressed: nothing is fetched only to be measured."""
    return f"""\
coalesce(CASE WHEN pg_column_compression({column}) IS NULL THEN pg_column_size({column})
    ELSE octet_length({column}::text) END, 0)"""
