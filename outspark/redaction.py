"""Text that may be shown and stored: without passwords, and without what a table or a log cannot hold."""

from __future__ import annotations

import re
from typing import Final

# Texts of events and of brokers come here, so none of these may look at a character more than a few times: each begins
# with fixed words, and what follows ends where these could stand again.
#
# libpq ends the user part at the first "/", so a password may hold anything else, "@" included.
_USER_AND_PASSWORD = re.compile(r"(://[^\s:/@\"'<>]*):[^\s/\"'<>]*@")
_NATS_TOKEN = re.compile(r"((?:nats|tls|wss?)://)[^\s:/@\"'<>]+@")
_NAMED = re.compile(r"(?i)\b((?:ssl)?password|passwd|token|secret)(\s*=\s*)('[^']*'?|[^\s&'\"]+)")


def redact(text: str) -> str:
    """The text with every password replaced: `postgresql://ada:***@db/shop`, `host=db password=***`."""
    text = _USER_AND_PASSWORD.sub(r"\1:***@", text)
    text = _NATS_TOKEN.sub(r"\1***@", text)
    return _NAMED.sub(r"\1\2***", text)


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
