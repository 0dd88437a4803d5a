"""Connections to one webhook server: opened past the guard, kept between requests, replaced when they break.

This is httpcore, the engine of httpx, without httpx's client around it: its cookies, redirects, proxies and
decoding are what a webhook must not have, and it has no seam for the guard.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from dataclasses import dataclass

import httpcore

from outspark.brokers.http.endpoint import Endpoint
from outspark.brokers.http.guard import resolve
from outspark.brokers.http.wire import Answer, Post
from outspark.errors import DestinationDown, DestinationError
from outspark.tls import tls_fault

# Below the five seconds after which common servers close an idle connection: we rarely send into a closing one.
_IDLE = 4.0
_KEPT_OF_BODY = 1000
# How long a server may take to refuse our certificate, when the handshake is through on our side.
_VERDICT = 0.25
_HUNG_UP = "the server hung up right after the TLS handshake; does it ask for a client certificate, or for another one?"


class Lost(Exception):
    """The connection broke before the answer was whole."""


@dataclass(frozen=True, slots=True)
class Server:
    """How to reach the server. `tls` is None for http."""

    endpoint: Endpoint
    tls: ssl.SSLContext | None
    allow_private: bool

    async def connect(self, timeout: float) -> httpcore.AsyncNetworkStream:
        """DestinationDown when nobody answers, DestinationError when it may not or cannot be used."""
        host, port, deadline = self.endpoint.host, self.endpoint.port, time.monotonic() + timeout
        try:
            async with asyncio.timeout(timeout):
                addresses = await resolve(host, port, allow_private=self.allow_private)
            stream = await _open(addresses, port, deadline)
            return stream if self.tls is None else await stream.start_tls(self.tls, host, _left(deadline))
        except TimeoutError:
            raise DestinationDown(f"no connection within {timeout:.3g} s") from None
        except (httpcore.NetworkError, httpcore.TimeoutException) as error:
            if fault := tls_fault(error):
                raise DestinationError(fault) from None
            raise DestinationDown(_reason(_root(error))) from None

    async def require_welcome(self, timeout: float) -> None:
        """The same as `connect`, over a connection of its own, and also when the server refuses our certificate.

        With TLS 1.3 it says so only when we take the connection for established.
        """
        stream = await self.connect(timeout)
        try:
            if self.tls is not None and not await stream.read(1, _VERDICT):
                raise DestinationDown(_HUNG_UP)
        except httpcore.TimeoutException:
            pass  # it waits for a request
        except (httpcore.NetworkError, ssl.SSLError) as error:
            if fault := tls_fault(error):
                raise DestinationError(fault) from None
            raise DestinationDown(_HUNG_UP) from None
        finally:
            await stream.aclose()


class Link:
    """One connection, opened at the first request and again after a loss. Used by one task at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        endpoint = server.endpoint
        self._origin = httpcore.Origin(endpoint.scheme.encode(), endpoint.host.encode(), endpoint.port)
        self._connection: httpcore.AsyncHTTP11Connection | None = None

    async def ready(self, timeout: float) -> None:
        """Open the connection unless it is; raises as `Server.connect` does."""
        if self._connection is not None:
            if self._connection.is_available() and not self._connection.has_expired():
                return
            await self.close()
        stream = await self._server.connect(timeout)
        self._connection = httpcore.AsyncHTTP11Connection(self._origin, stream, keepalive_expiry=_IDLE)

    async def post(self, post: Post, timeout: float) -> Answer:
        """TimeoutError or Lost when there is no whole answer; then the connection is closed."""
        connection = self._connection
        if connection is None:
            raise Lost("there is no connection")
        try:
            async with asyncio.timeout(timeout):
                return await _ask(connection, self._request(post))
        except (httpcore.NetworkError, httpcore.ProtocolError, ssl.SSLError) as error:
            # The engine lets an alert of the server's through as it came.
            raise Lost(_reason(error)) from None
        finally:
            if not connection.is_available():
                await self.close()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()

    def _request(self, post: Post) -> httpcore.Request:
        origin = self._origin
        url = httpcore.URL(scheme=origin.scheme, host=origin.host, port=origin.port, target=post.target)
        return httpcore.Request("POST", url, headers=post.headers, content=post.body)


async def _open(addresses: list[str], port: int, deadline: float) -> httpcore.AsyncNetworkStream:
    """The first address that answers; each has its share of the time, so that a dead one does not use it all."""
    backend = httpcore.AnyIOBackend()
    *others, last = addresses
    for number, address in enumerate(others):
        try:
            return await backend.connect_tcp(address, port, _left(deadline) / (len(addresses) - number))
        except (httpcore.ConnectError, httpcore.ConnectTimeout):
            continue
    return await backend.connect_tcp(last, port, _left(deadline))


async def _ask(connection: httpcore.AsyncHTTP11Connection, request: httpcore.Request) -> Answer:
    response = await connection.handle_async_request(request)
    body = b""
    try:
        # Read to the end, so that the connection can be used again, but keep only what may be shown.
        async for part in response.aiter_stream():
            body = body or part[:_KEPT_OF_BODY]
    finally:
        await response.aclose()
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
    return Answer(response.status, headers, body)


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError | httpcore.TimeoutException):
        return "timed out"
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return str(error).rstrip(".") or "the connection broke"
