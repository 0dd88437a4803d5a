"""SQL for timestamps that are infinite or outside of Python's range: how statements read and subtract them.

A `timestamptz` may be infinite, or lie before the year 1 or after 9999. Python's datetime ends there, and PostgreSQL
before 17 cannot subtract infinite timestamps. So times are clamped to `FIRST` and `LAST` when read, which are valid in
every time zone, and differences are computed from epoch seconds, where infinity is a float.
"""

from __future__ import annotations

from typing import Final

FIRST: Final = "'0001-01-02 00:00:00+00'::timestamptz"
LAST: Final = "'9999-12-30 00:00:00+00'::timestamptz"


def readable(column: str) -> str:
    """The time clamped to Python's range; the column must not be NULL."""
    return f"greatest(least({column}, {LAST}), {FIRST})"


def seconds_until(time: str) -> str:
    """Seconds from now; infinity for infinity, NULL for NULL."""
    return f"(extract(epoch FROM {time}) - extract(epoch FROM clock_timestamp()))::float8"


def mark(time: str) -> str:
    """The time, or NULL outside of Python's range: a scan that continues from NULL starts from the beginning."""
    return f"CASE WHEN {time} > {FIRST} AND {time} < {LAST} THEN {time} END"


def same(column: str, read: str) -> str:
    """Is the column's time the one that `readable` returned? True for any time beyond the bound that was read."""
    earliest = f"CASE WHEN {read} <= {FIRST} THEN '-infinity' ELSE {read} END"
    latest = f"CASE WHEN {read} >= {LAST} THEN 'infinity' ELSE {read} END"
    return f"{column} BETWEEN {earliest} AND {latest}"


LOW: Final = f"CASE WHEN %(low)s::timestamptz > {FIRST} THEN %(low)s::timestamptz ELSE '-infinity' END"
"""Lower bound of a scan: the parameter `low`, or -infinity when it is NULL or the clamped `FIRST`."""
