"""Bytes of brokers as text and JSON that PostgreSQL can hold, and how a body is kept that is neither."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

from outspark.redaction import storable

# A NUL inside a string; what follows an even number of backslashes is an escape.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def fault(body: bytes) -> str | None:
    """Why this is no JSON, without any of it; PostgreSQL stores no NUL and no half characters."""
    try:
        text = body.decode()
        value = _DECODER.decode(text)
        if "\\u" in text:
            if _NUL.search(text):
                raise ValueError("PostgreSQL stores no NUL in text")
            # Half of a surrogate pair has no UTF-8.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return storable(f"body is not JSON: {_reason(error)}")
    return None


def wrap(body: bytes) -> str:
    """A body that is no JSON, as JSON: `{"raw": "...", "encoding": "base64"}`; readable text stays readable."""
    text = utf8(body)
    if text is None:
        return json.dumps({"raw": base64.b64encode(body).decode(), "encoding": "base64"})
    return json.dumps({"raw": text, "encoding": "utf-8"}, ensure_ascii=False)


def unwrap(payload: Any) -> bytes:
    """What `wrap` was given."""
    raw: str = payload["raw"]
    return base64.b64decode(raw) if payload["encoding"] == "base64" else raw.encode()


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _number(text: str) -> None:
    # Nobody needs the number here; this spares Python the work, and its limit on the length of integers.
    return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_number, parse_float=_number)


def utf8(value: bytes) -> str | None:
    """None where PostgreSQL could not hold it as text."""
    try:
        return None if b"\0" in value else value.decode()
    except UnicodeDecodeError:
        return None


def to_bytes(text: str) -> bytes:
    # A driver may have decoded what was no text with surrogates in it: so it is bytes again, and no text.
    return text.encode(errors="surrogatepass")


def fitting(value: bytes, limit: int) -> str:
    """Text as it is where the column can hold it, otherwise a hash of it."""
    text = utf8(value)
    return text if text is not None and len(text) <= limit else f"sha256:{hashlib.sha256(value).hexdigest()}"


def clean(text: str) -> str:
    """With a sign in the place of what PostgreSQL cannot hold."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")
