"""Durations as people write them: `500ms`, `30s`, `3m`, `12h`, `7d`, or several together as in `1h30m`."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse(text: str) -> timedelta:
    """`1h30m` is 5400 seconds. ValueError for anything that is not a number with a unit."""
    compact = text.strip().lower()
    parts = _PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise ValueError(
            f"not a duration: {text!r}; write a number with a unit, such as 500ms, 30s, 3m, 12h or 7d"
        )
    return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))


def text(duration: timedelta) -> str:
    """The shortest exact form: 5400 seconds is `1h30m`, half a second is `500ms`."""
    left = round(duration.total_seconds() * 1000)
    if left == 0:
        return "0s"
    words = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, left = divmod(left, size)
        if count:
            words.append(f"{count}{unit}")
    return "".join(words)
