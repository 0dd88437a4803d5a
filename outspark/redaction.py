"""Makes text safe to show and store: no passwords, and no characters that a table or a log cannot hold."""

from __future__ import annotations

import re
from typing import Final

# The input may come from events and brokers, so no pattern may backtrack far (ReDoS). Each begins with a fixed word,
# and its variable part excludes the characters with which that word could begin again.
#
# libpq ends the user part at the first "/", so a password may contain any other character, "@" included.
_USER_AND_PASSWORD = re.compile(r"(://[^\s:/@\"'<>]*):[^\s/\"'<>]*@")
_NATS_TOKEN = re.compile(r"((?:nats|tls|wss?)://)[^\s:/@\"'<>]+@")
_NAMED = re.compile(r"(?i)\b((?:ssl)?password|passwd|token|secret)(\s*=\s*)('[^']*'?|[^\s&'\"]+)")


def redact(text: str) -> str:
    """The text with every password replaced: `postgresql://ada:***@db/shop`, `host=db password=***`."""
    text = _USER_AND_PASSWORD.sub(r"\1:***@", text)
    text = _NATS_TOKEN.sub(r"\1***@", text)
    return _NAMED.sub(r"\1\2***", text)


MAX_ERROR: Final = 2000
"""How many characters of an error a table keeps."""


def storable(text: str, limit: int = MAX_ERROR) -> str:
    """The first `limit` characters; what PostgreSQL or UTF-8 cannot hold (NUL, lone surrogates) is replaced."""
    return text[:limit].encode(errors="replace").decode().replace("\0", "\ufffd")


def of(error: BaseException) -> str:
    """The text of an error on one line; empty when the error has none."""
    try:
        said = " ".join(str(error).split())
    except Exception as broken:  # noqa: BLE001 - the `__str__` of a handler's or library's error may raise anything
        said = f"the error has no text: its __str__ raised {type(broken).__name__}"
    return storable(said)
