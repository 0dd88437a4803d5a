"""Headers on the wire: strings, whatever JSON the row held."""

from __future__ import annotations

from typing import Any

import pytest

from outspark.errors import EventInvalid, HeadersInvalid
from outspark.headers import text_headers, wire_headers


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


def test_stored_headers_become_text_before_the_others() -> None:
    found = text_headers([("b", "grün".encode()), ("a", b"")], {"t": "x"})

    assert list(found.items()) == [("b", "grün"), ("a", ""), ("t", "x")]


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        ([("a", b"1"), ("a", b"1")], "header 'a' is there twice"),
        ([("t", b"1")], "header 't' is there twice"),
        ([("a", None)], "header 'a' is null"),
        ([("a", b"\xff")], "header 'a' is not UTF-8"),
    ],
)
def test_stored_headers_that_text_cannot_hold_are_refused(stored: Any, problem: str) -> None:
    with pytest.raises(EventInvalid, match=problem):
        text_headers(stored, {"t": "x"})
