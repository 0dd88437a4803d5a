"""How a client of NATS is connected, and what its errors mean: for one connection's life, without a second try."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.js.errors import APIError

from outspark.errors import DestinationDown, DestinationError
from outspark.publishers.nats_tls import TlsNotOffered
from outspark.publishers.tls_faults import tls_fault

ERRORS: Final = (nats.errors.Error, APIError, OSError, TimeoutError)
CLOSE_TIMEOUT: Final = 1.0

_FORBIDDEN = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"')
_REFUSED = ("authorization violation", "authentication", "credentials", "revoked")


class Faults:
    """What a client reports besides its answers: the last few."""

    def __init__(self) -> None:
        self._last: list[Exception] = []

    def add(self, error: Exception) -> None:
        self._last = [*self._last[-9:], error]

    def last(self) -> Exception | None:
        return self._last[-1] if self._last else None

    def forbidden(self, verb: str, prefix: str) -> bool:
        """Was it refused to `publish` to, or to have a `subscription` to, something that begins with this?"""
        violations = (violation(fault) for fault in self._last)
        return any(found and found[0] == verb and found[1].startswith(prefix.lower()) for found in violations)


def violation(error: Exception) -> tuple[str, str] | None:
    """What was forbidden, `publish` or `subscription`, and to which subject; the client has it in lower case."""
    found = _FORBIDDEN.search(str(error))
    return None if found is None else (found[1], found[2])


async def connect(client: Client, options: Mapping[str, Any], timeout: float, **callbacks: Any) -> None:
    """DestinationError where trying again cannot help. The client's own errors too: see `sorted_error`."""
    try:
        async with asyncio.timeout(timeout):
            await client.connect(
                **options,
                # One round over the servers, nothing kept for later: whoever comes next connects anew.
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                pending_size=0,
                connect_timeout=whole(timeout),
                **callbacks,
            )
    except ModuleNotFoundError as error:
        raise DestinationError("a creds file needs one more package: pip install 'nats-py[nkeys]'") from error


def sorted_error(error: Exception) -> DestinationError:
    """DestinationDown unless the server refused us."""
    if fault := tls_fault(error):
        return DestinationError(fault)
    said = text(error)
    if isinstance(error, ssl.SSLError | TlsNotOffered) or any(word in said.lower() for word in _REFUSED):
        return DestinationError(said)
    return DestinationDown(said)


def text(error: BaseException) -> str:
    return str(error).removeprefix("nats: ").strip("'") or "timed out"


def whole(seconds: float) -> int:
    """The client wants whole seconds; the caller's own timeout cuts shorter where it must."""
    return max(1, round(seconds))
