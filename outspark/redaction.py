"""Keeps passwords out of everything that people or machines may read."""

from __future__ import annotations

import re

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
