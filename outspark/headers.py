"""Headers in the forms that brokers carry: text or bytes; and the content type among them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from outspark.errors import EventInvalid, HeadersInvalid

CONTENT_TYPE: Final = "content-type"


def content_type_of(headers: Mapping[str, str]) -> str | None:
    return next((value for name, value in headers.items() if name.lower() == CONTENT_TYPE), None)


def with_content_type(headers: Mapping[str, str], value: str) -> dict[str, str]:
    """The headers with this content type and no other."""
    return {**without_content_type(headers), CONTENT_TYPE: value}


def without_content_type(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() != CONTENT_TYPE}


def is_json_type(value: str) -> bool:
    """True for `application/json; charset=utf-8` and `application/vnd.shop.order+json`."""
    return value.partition(";")[0].strip().lower().endswith(("/json", "+json"))


Stored = Sequence[tuple[str, bytes | None]]
"""Headers in Kafka's form: ordered pairs with values of bytes; a name may occur twice, and a value may be null."""


NO_HEADERS: Mapping[str, str] = {}


def wire_headers(headers: Any) -> Mapping[str, str]:
    """Headers as text: strings stay, nested values and numbers become JSON text, null values are dropped.

    `{"a": "x", "n": 1, "o": {"k": []}}` becomes `{"a": "x", "n": "1", "o": '{"k": []}'}`.
    """
    if not headers:
        if headers is None or headers == {}:
            return NO_HEADERS
        raise HeadersInvalid(headers)
    if not isinstance(headers, dict):
        raise HeadersInvalid(headers)
    for value in headers.values():
        if type(value) is not str:
            break
    else:
        return headers
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in headers.items()
        if value is not None
    }


def text_headers(stored: Stored, others: Mapping[str, str]) -> dict[str, str]:
    """All headers for a destination with unique names and text values; EventInvalid for what it cannot represent."""
    found: dict[str, str] = {}
    for name, value in stored:
        if name in found or name in others:
            raise EventInvalid(f"header {name!r} is there twice, which this destination cannot carry")
        if value is None:
            raise EventInvalid(f"header {name!r} is null, which this destination cannot carry")
        try:
            found[name] = value.decode()
        except UnicodeDecodeError:
            raise EventInvalid(f"header {name!r} is not UTF-8, and this destination carries text") from None
    return {**found, **others}
