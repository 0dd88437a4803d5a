"""Headers on the wire: strings, whatever JSON the row held."""

from __future__ import annotations

from typing import Any

import pytest

from outspark.errors import HeadersInvalid
from outspark.event import wire_headers


def test_strings_stay_and_the_rest_becomes_json_text() -> None:
    assert wire_headers({"a": "x", "n": 1, "o": {"k": []}, "t": True, "none": None}) == {
        "a": "x",
        "n": "1",
        "o": '{"k": []}',
        "t": "true",
    }


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_headers(nothing: Any) -> None:
    assert wire_headers(nothing) == {}


@pytest.mark.parametrize(
    ("headers", "kind"), [(["x"], "list"), ([], "list"), (7, "int"), (0, "int"), (False, "bool")]
)
def test_what_is_no_object_is_refused_by_its_kind(headers: Any, kind: str) -> None:
    with pytest.raises(HeadersInvalid, match=f"must be a JSON object of strings, not {kind}"):
        wire_headers(headers)


@pytest.mark.parametrize("headers", ["text", ""])
def test_a_bare_string_is_refused_without_being_shown_at_length(headers: str) -> None:
    with pytest.raises(HeadersInvalid):
        wire_headers(headers)
