"""Copies JSON payloads into a JSON document byte by byte, so that numbers and the order of keys do not change."""

from __future__ import annotations

import json
from collections.abc import Mapping


def is_json(payload: bytes) -> bool:
    """Whether the payload is one JSON value in UTF-8, strictly after RFC 8259."""
    try:
        _DECODER.decode(payload.decode())
    except (ValueError, RecursionError):
        return False
    return True


def embed(fields: Mapping[str, object], name: str, payload: bytes) -> bytes:
    """Return the fields as a JSON object with the payload as its last member; the payload must be JSON."""
    head = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate cannot be encoded as UTF-8; its backslash escape is valid in JSON.
    return b'%s,"%s":%s}' % (head[:-1].encode(errors="backslashreplace"), name.encode(), payload)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


# The numbers are not used, and Python would refuse to convert very long ones.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)
