"""Keeps passwords out of everything that people or machines may read."""

from __future__ import annotations

import re

# libpq ends the user part at the first "/", so a password may hold anything else, "@" included.
_USER_AND_PASSWORD = re.compile(r"([A-Za-z][\w+.-]*://[^\s:/@\"'<>]*):[^\s/\"'<>]*@")
_NATS_TOKEN = re.compile(r"((?:nats|tls|wss?)://)[^\s:/@\"'<>]+@")
_NAMED = re.compile(r"(?i)\b((?:ssl)?password|passwd|token|secret)(\s*=\s*)('[^']*'|[^\s&'\"]+)")


def redact(text: str) -> str:
    """The text with every password replaced: `postgresql://ada:***@db/shop`, `host=db password=***`."""
    text = _USER_AND_PASSWORD.sub(r"\1:***@", text)
    text = _NATS_TOKEN.sub(r"\1***@", text)
    return _NAMED.sub(r"\1\2***", text)
