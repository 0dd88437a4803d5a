"""Bytes of brokers as text that PostgreSQL can hold."""

from __future__ import annotations

import hashlib


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
