"""Conditions on rows that are found by their ids."""

from __future__ import annotations

from psycopg import sql


def still(condition: sql.Composable) -> sql.Composed:
    """The same condition, out of the planner's sight.

    Bare, a condition on the state of known rows offers the planner an index of that state. Statistics from before the
    backlog make it look empty, and then each claim or settle compares all that waits with its ids.
    """
    return sql.SQL("coalesce({condition}, false)").format(condition=condition)
