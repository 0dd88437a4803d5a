"""The parsed URL of a webhook. Its path may contain a token, so errors never show it."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

_TOPIC = "{topic}"
_DEFAULT_PORTS = {"http": 80, "https": 443}
# Characters that stay as they are in path and query; others, such as a space or an umlaut, are percent-encoded.
_SAFE = "/%:@!$&'()*+,;=?~{}-._[]|"


@dataclass(frozen=True, slots=True)
class Endpoint:
    scheme: str
    host: str
    port: int
    path: str = field(repr=False)
    """Path and query; `{topic}` in it is replaced by the message's topic."""
    authorization: str | None = field(repr=False)
    """The Basic header, if the URL has a user."""
    secrets: tuple[str, ...] = field(repr=False)
    """Texts to hide in errors: credentials, and parts of path and query that may be tokens."""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    def target(self, topic: str) -> bytes:
        """Path and query for this topic; ValueError if the topic cannot be part of the path."""
        if _TOPIC not in self.path:
            return self.path.encode()
        if topic.strip(".") == "":
            raise ValueError(f"topic {topic!r} would lead to another path of the URL")
        return self.path.replace(_TOPIC, quote(topic, safe="")).encode()


def parse(url: str) -> Endpoint:
    """Parse the URL; ValueError, which does not quote it, if a webhook cannot have it."""
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError("must begin with https:// or http://")
    if not parts.hostname or "{" in parts.netloc:
        raise ValueError("must name a host, and {topic} may stand only behind it")
    if parts.fragment:
        raise ValueError("must not have a fragment (#...)")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Endpoint(
        parts.scheme,
        _ascii(parts.hostname),
        _port(parts.netloc, parts.scheme),
        quote(path, safe=_SAFE),
        _basic(parts.username, parts.password),
        (*_credentials(parts.username, parts.password), *re.split(r"[/?&=]|\{topic\}", path)),
    )


def _ascii(host: str) -> str:
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        raise ValueError("the host is not a valid name") from None


def _port(netloc: str, scheme: str) -> int:
    try:
        return urlsplit(f"//{netloc}").port or _DEFAULT_PORTS[scheme]
    except ValueError:
        raise ValueError("the port must be a number from 1 to 65535") from None


def _basic(user: str | None, password: str | None) -> str | None:
    if user is None and password is None:
        return None
    return f"Basic {_encoded(user, password)}"


def _credentials(user: str | None, password: str | None) -> list[str]:
    return [] if password is None else [password, unquote(password), _encoded(user, password)]


def _encoded(user: str | None, password: str | None) -> str:
    return base64.b64encode(f"{unquote(user or '')}:{unquote(password or '')}".encode()).decode()
