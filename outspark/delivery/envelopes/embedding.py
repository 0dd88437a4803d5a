"""JSON payloads put into a JSON document byte by byte, so that numbers keep their digits and keys their order."""

from __future__ import annotations

import json
from collections.abc import Mapping


def is_json(payload: bytes) -> bool:
    """Whether it is one JSON value in UTF-8, by the letter of RFC 8259."""
    try:
        _DECODER.decode(payload.decode())
    except (ValueError, RecursionError):
        return False
    return True


def embed(fields: Mapping[str, object], name: str, payload: bytes) -> bytes:
    """The fields as a JSON object, with the payload, which must be JSON, as its last member."""
    head = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate has no UTF-8 form; its backslash escape is what JSON would have written anyway.
    return b'%s,"%s":%s}' % (head[:-1].encode(errors="backslashreplace"), name.encode(), payload)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


# Nobody looks at the numbers, and Python would refuse to convert the very long ones.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)
