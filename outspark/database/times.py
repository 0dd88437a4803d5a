"""Times of rows that end nowhere, or that Python cannot hold: how statements read them and reckon with them.

A `timestamptz` may be infinite, or lie before the year 1 or after 9999. Python's datetime ends there, and PostgreSQL
before 17 cannot subtract what is infinite. So whatever is read is brought within `FIRST` and `LAST`, which every time
zone can show, and seconds are reckoned from the epoch, where infinity is a number.
"""

from __future__ import annotations

from typing import Final

FIRST: Final = "'0001-01-02 00:00:00+00'::timestamptz"
LAST: Final = "'9999-12-30 00:00:00+00'::timestamptz"


def readable(column: str) -> str:
    """The time as Python can hold it; the column has one."""
    return f"greatest(least({column}, {LAST}), {FIRST})"


def seconds_until(time: str) -> str:
    """Infinity for what never comes, NULL for NULL."""
    return f"(extract(epoch FROM {time}) - extract(epoch FROM clock_timestamp()))::float8"


def mark(time: str) -> str:
    """The time, or NULL where Python cannot hold it, for whoever goes on from there: it begins anew then."""
    return f"CASE WHEN {time} > {FIRST} AND {time} < {LAST} THEN {time} END"


def same(column: str, read: str) -> str:
    """Is the column's time the one that was read from it?"""
    earliest = f"CASE WHEN {read} <= {FIRST} THEN '-infinity' ELSE {read} END"
    latest = f"CASE WHEN {read} >= {LAST} THEN 'infinity' ELSE {read} END"
    return f"{column} BETWEEN {earliest} AND {latest}"


LOW: Final = f"CASE WHEN %(low)s::timestamptz > {FIRST} THEN %(low)s::timestamptz ELSE '-infinity' END"
"""Where a look begins: `low`, or before all time when that is the beginning or stands for what Python cannot hold."""
