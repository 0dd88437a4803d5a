"""Text of errors that can be kept: whatever an event, a broker or a handler put into it, a table and a log take it."""

from __future__ import annotations

from typing import Final

MAX_ERROR: Final = 2000
"""What the table keeps of an error, in characters."""


def storable(text: str, limit: int = MAX_ERROR) -> str:
    """The beginning, with a sign for what PostgreSQL or UTF-8 cannot hold: NUL, and halves of characters."""
    return text[:limit].encode(errors="replace").decode().replace("\0", "\ufffd")


def of(error: BaseException) -> str:
    """What an error says, in one line; nothing where it says nothing."""
    try:
        said = " ".join(str(error).split())
    except Exception as broken:  # noqa: BLE001 - errors of others may be of any make
        said = f"its text cannot be had: {type(broken).__name__}"
    return storable(said)
