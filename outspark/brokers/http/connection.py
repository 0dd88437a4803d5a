"""Connections to one webhook server: checked by the guard, reused between requests, replaced if they break.

This uses httpcore, the lower layer of httpx: a webhook must not have the cookies, redirects, proxies and decoding of
httpx's client, and that client has no hook for the guard.
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

# Common servers close idle connections after five seconds; with less, a request rarely meets a closing one.
_IDLE = 4.0
_KEPT_OF_BODY = 1000
# How long `require_welcome` waits for a server to refuse the client certificate after the handshake.
_VERDICT = 0.25
_HUNG_UP = (
    "the server closed the connection after the TLS handshake; does it need a client certificate, or another?"
)


class Lost(Exception):
    """The connection broke before the response was complete."""


@dataclass(frozen=True, slots=True)
class Server:
    """The server's endpoint and how to connect to it. `tls` is None for http."""

    endpoint: Endpoint
    tls: ssl.SSLContext | None
    allow_private: bool

    async def connect(self, timeout: float) -> httpcore.AsyncNetworkStream:
        """Connect; DestinationDown if no address answers, DestinationError if the guard or TLS refuses."""
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
        """Raise like `connect`, over a new connection, and also if the server refuses the client certificate.

        With TLS 1.3 the server refuses it only after the connection is established for the client.
        """
        stream = await self.connect(timeout)
        try:
            if self.tls is not None and not await stream.read(1, _VERDICT):
                raise DestinationDown(_HUNG_UP)
        except httpcore.TimeoutException:
            pass  # the server waits for a request
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
        """Open the connection if it is not open; raises like `Server.connect`."""
        if self._connection is not None:
            if self._connection.is_available() and not self._connection.has_expired():
                return
            await self.close()
        stream = await self._server.connect(timeout)
        self._connection = httpcore.AsyncHTTP11Connection(self._origin, stream, keepalive_expiry=_IDLE)

    async def post(self, post: Post, timeout: float) -> Answer:
        """Send the request; TimeoutError or Lost without a complete response, and then the connection is closed."""
        connection = self._connection
        if connection is None:
            raise Lost("there is no connection")
        try:
            async with asyncio.timeout(timeout):
                return await _ask(connection, self._request(post))
        except (httpcore.NetworkError, httpcore.ProtocolError, ssl.SSLError) as error:
            # httpcore does not wrap the SSLError of an alert that the server sends.
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
    """Connect to the first address that answers; each gets a share of the time, so that one cannot use it up."""
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
        # The body is read to its end, so that the connection can be reused; only its beginning is kept for errors.
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
