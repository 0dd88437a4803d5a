"""Converts bytes from brokers into text and JSON that PostgreSQL can store, and wraps bodies that are neither."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

from outspark.redaction import storable

# An escaped NUL inside a string: `\\u0000` is an escape only after an even number of backslashes.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def fault(body: bytes) -> str | None:
    """Why this is not JSON for PostgreSQL, which stores neither NUL nor lone surrogates. The text quotes no content."""
    try:
        text = body.decode()
        value = _DECODER.decode(text)
        if "\\u" in text:
            if _NUL.search(text):
                raise ValueError("PostgreSQL stores no NUL in text")
            # A lone surrogate cannot be encoded as UTF-8.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return storable(f"body is not JSON: {_reason(error)}")
    return None


def wrap(body: bytes) -> str:
    """Wrap a body that is not JSON: `{"raw": "...", "encoding": "base64"}`, or `utf-8` and the text itself."""
    text = utf8(body)
    if text is None:
        return json.dumps({"raw": base64.b64encode(body).decode(), "encoding": "base64"})
    return json.dumps({"raw": text, "encoding": "utf-8"}, ensure_ascii=False)


def unwrap(payload: Any) -> bytes:
    """The body that `wrap` was given."""
    raw: str = payload["raw"]
    return base64.b64decode(raw) if payload["encoding"] == "base64" else raw.encode()


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _number(text: str) -> None:
    # The value is not used. Python neither converts the number nor applies its limit on the length of integers.
    return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_number, parse_float=_number)


def utf8(value: bytes) -> str | None:
    """The bytes as text; None if PostgreSQL cannot store them as text."""
    try:
        return None if b"\0" in value else value.decode()
    except UnicodeDecodeError:
        return None


def to_bytes(text: str) -> bytes:
    # A client may have decoded invalid UTF-8 into surrogates; `surrogatepass` keeps them as bytes that are not UTF-8.
    return text.encode(errors="surrogatepass")


def fitting(value: bytes, limit: int) -> str:
    """The text unchanged if the column can store it, otherwise its hash."""
    text = utf8(value)
    return text if text is not None and len(text) <= limit else f"sha256:{hashlib.sha256(value).hexdigest()}"


def clean(text: str) -> str:
    """The text with a replacement character for everything that PostgreSQL cannot store."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")
