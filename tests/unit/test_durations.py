"""Durations in words, both ways."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outspark.config import durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("3m", 180),
        ("12h", 43200),
        ("7d", 604800),
        ("1h30m", 5400),
        ("0.5s", 0.5),
    ],
)
def test_parse(text: str, seconds: float) -> None:
    assert durations.parse(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "-5s", "5sec", "5s x", "1h,30m", "1e3s"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a duration: .*such as 500ms, 30s, 3m, 12h or 7d"):
        durations.parse(text)


def test_spaces_around_and_capitals_are_forgiven() -> None:
    assert durations.parse(" 1H30M ") == timedelta(minutes=90)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (5400, "1h30m"), (0.5, "500ms"), (90061.001, "1d1h1m1s1ms")]
)
def test_text(seconds: float, text: str) -> None:
    assert durations.text(timedelta(seconds=seconds)) == text


@given(st.integers(min_value=0, max_value=10**12))
def test_text_and_parse_are_inverse(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)

    assert durations.parse(durations.text(duration)) == duration
