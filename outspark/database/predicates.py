"""Conditions that the statements of all contracts share: blocked keys, the limit on bytes, hiding from the planner."""

from __future__ import annotations

from psycopg import sql

# Not `<> ALL(...)`: the planner would estimate the selectivity of every key, which takes longer than the claim itself.
_NOT_BLOCKED = """\
(cardinality(%(blocked)s::text[]) = 0 OR {key} IS NULL
    OR {key} NOT IN (SELECT k FROM unnest(%(blocked)s::text[]) AS k))"""


def not_blocked(key: sql.Composable) -> sql.Composed:
    """True when `key` is not in the parameter `blocked`, or is NULL: an event without a key is never blocked."""
    return sql.SQL(_NOT_BLOCKED).format(key=key)


def hide_from_planner(condition: sql.Composable) -> sql.Composed:
    """The same condition, in a form that matches no index.

    Otherwise the planner may answer a condition on the state of known rows with the partial index of that state.
    Statistics from before a backlog make that index look empty, and each claim or settle would then read all of it.
    """
    return sql.SQL("coalesce({condition}, false)").format(condition=condition)


_TOTAL = """total AS MATERIALIZED (SELECT sum(n.size) > {most} AS cut FROM next n)"""

# Without ORDER BY: a materialized CTE is read in the order in which it was filled, and a lane's planner settings
# disable sorts (see database/session.py).
_FITS = """\
(NOT (SELECT cut FROM total) OR {id} IN (
    SELECT b.id FROM (
      SELECT {next_id} AS id, sum(n.size) OVER (ROWS UNBOUNDED PRECEDING) - n.size AS before FROM next n
    ) b WHERE b.before < {most}))"""

_CUT = """(SELECT cut FROM total)"""


def bounded(most: int, id: str) -> dict[str, sql.Composable]:
    """Parts for a statement whose rows have this id.

    `total` is a CTE after `next`; `fits` keeps the rows of `next` within the limit, and at least one. `cut` is true
    when the limit was reached, so more rows may be waiting.
    """
    parts = {"most": sql.Literal(most), "next_id": sql.Identifier("n", id)}
    return {
        "total": sql.SQL(_TOTAL).format(**parts),
        "fits": sql.SQL(_FITS).format(id=sql.Identifier("next", id), **parts),
        "cut": sql.SQL(_CUT),
    }


def size(column: str) -> str:
    """SQL for the bytes of a jsonb. Only compressed values are fetched and converted; others are measured as stored."""
    return f"""\
coalesce(CASE WHEN pg_column_compression({column}) IS NULL THEN pg_column_size({column})
    ELSE octet_length({column}::text) END, 0)"""
