"""The `content-type` among a message's headers, however its name is spelt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HEADER: Final = "content-type"


def declared(headers: Mapping[str, str]) -> str | None:
    return next((value for name, value in headers.items() if name.lower() == HEADER), None)


def declare(headers: Mapping[str, str], value: str) -> dict[str, str]:
    """The headers with this content type and no other."""
    return {**without(headers), HEADER: value}


def without(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() != HEADER}


def is_json(value: str) -> bool:
    """True for `application/json; charset=utf-8` and `application/vnd.shop.order+json`."""
    return value.partition(";")[0].strip().lower().endswith(("/json", "+json"))
