"""No more bytes in one claim than a lane may hold, as conditions on what the claim found.

A claim finds its rows in the CTE `next`, in its order, each with its `size`. It keeps them while those before are less
than the bound: a first part, so that nothing is overtaken, and never nothing, however large the first row is. Mostly
all of it fits, and that costs no more than a sum.
"""

from __future__ import annotations

from psycopg import sql

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
