"""One connection to one Redis server: commands go out in chunks, and the answers come back in their order.

Once it is lost or late it is thrown away as a whole: no answer is taken for another command's, and nothing that was
answered with Retry is sent afterwards.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from redis.connection import AbstractConnection, Connection, SSLConnection
from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    MovedError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeout

from outspark.errors import DestinationDown, DestinationError
from outspark.outcome import Retry
from outspark.publishers.options import tls_context
from outspark.publishers.redis_wire import MAX_VALUE, outcome, refuses_xadd, said
from outspark.publishers.tls_faults import tls_fault
from outspark.publishers.tls_probe import tls_verdict

# Writes nothing, since the stream does not exist, but is refused like any XADD when Redis takes no writes.
_PROBE = ("XADD", "outspark:check", "NOMKSTREAM", "*", "check", "1")
_ABORT_ON_CLOSE = struct.pack("ii", 1, 0)


class Address(NamedTuple):
    host: str
    port: int


class Node:
    """Connected on construction; DestinationDown or DestinationError when that does not work.

    `max_value` is the largest payload the server takes.
    """

    def __init__(self, options: Mapping[str, Any], name: str, deadline: float) -> None:
        self._connection = _connection(options, _left(deadline))
        self.max_value = MAX_VALUE
        self._buffer: list[bytes] = []
        self._unanswered: deque[int | None] = deque()
        self._sent_last = 0
        with self._sorting_errors():
            try:
                self._connection.connect()
            except (AuthenticationError, AuthenticationWrongNumberOfArgsError):
                raise
            except ResponseError as error:  # no such database, or not for this user
                raise DestinationError(str(error)) from error
            except (RedisError, OSError) as error:
                if fault := tls_fault(error) or _tls_verdict(options, error):
                    raise DestinationError(fault) from error
                raise
            # What the kernel has not sent yet when we give up must not reach Redis behind our back.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT_ON_CLOSE)
            self._introduce(name, deadline)

    def add(self, index: int | None, command: bytes) -> None:
        """To be sent with the next `flush`. None is for a command whose answer nobody waits for."""
        self._buffer.append(command)
        self._unanswered.append(index)

    def flush(self, deadline: float) -> None:
        self._sent_last = len(self._buffer)
        data, self._buffer = b"".join(self._buffer), []
        if data:
            with self._sorting_errors():
                self._socket.settimeout(_left(deadline))
                self._connection.send_packed_command([data], check_health=False)

    def answers(
        self, deadline: float, *, but_last: bool = False
    ) -> Iterator[tuple[int, ResponseError | None]]:
        """Message by message, None when it was taken. `but_last` leaves those of the last flush for later."""
        leave = self._sent_last if but_last else 0
        read, unanswered = self._connection.read_response, self._unanswered
        with self._sorting_errors():
            while len(unanswered) > leave:
                refusal = None
                try:
                    read(disable_decoding=True, timeout=_left(deadline))
                except ResponseError as error:
                    refusal = error
                index = unanswered.popleft()
                if index is not None:
                    yield index, refusal

    def still_there(self) -> bool:
        """While nothing is under way there is nothing to read, unless the server hung up."""
        try:
            fresh = not self._connection.can_read(0)
        except RedisError:
            fresh = False
        if not fresh:
            self.close()
        return fresh

    def request(self, *words: str, deadline: float) -> Any:
        """One command and its answer, while no other is under way."""
        with self._sorting_errors():
            self._socket.settimeout(_left(deadline))
            self._connection.send_command(*words, check_health=False)
            return self._connection.read_response(timeout=_left(deadline))

    def check(self, deadline: float) -> None:
        """DestinationDown when Redis takes no writes now, DestinationError when it takes none from this user."""
        try:
            self.request(*_PROBE, deadline=deadline)
        except MovedError:
            return  # a cluster, in which another node has that stream
        except ResponseError as error:
            if refuses_xadd(error):
                raise DestinationError(str(error)) from error
            verdict = outcome(error, _PROBE[1])
            if isinstance(verdict, Retry) and not verdict.counted and not verdict.fault:
                raise DestinationDown(said(error)) from error

    def close(self) -> None:
        self._connection.disconnect()

    def _introduce(self, name: str, deadline: float) -> None:
        """Courtesies: the user need not be allowed any of them."""
        with contextlib.suppress(ResponseError):
            self.request("CLIENT", "SETNAME", name, deadline=deadline)
        with contextlib.suppress(ResponseError):
            found = self.request("CONFIG", "GET", "proto-max-bulk-len", deadline=deadline)
            self.max_value = int(found[1])

    @property
    def _socket(self) -> Any:
        # The client offers neither a deadline for sending nor a close that drops what was not sent.
        return self._connection._sock

    @contextlib.contextmanager
    def _sorting_errors(self) -> Iterator[None]:
        try:
            yield
        except (AuthenticationError, AuthenticationWrongNumberOfArgsError) as error:
            self.close()
            raise DestinationError(f"Redis refuses the user or password: {error}") from error
        except ResponseError:
            raise
        except (RedisError, OSError) as error:
            self.close()
            raise DestinationDown(str(error) or "timed out") from error


def _connection(options: Mapping[str, Any], timeout: float) -> Any:
    kind: type[AbstractConnection] = options.get("connection_class", Connection)
    given = {key: value for key, value in options.items() if key != "connection_class"}
    # RESP2 has no messages out of turn, and every Redis that knows streams speaks it.
    return kind(**given, protocol=2, socket_timeout=timeout, socket_connect_timeout=timeout)


def _tls_verdict(options: Mapping[str, Any], error: Exception) -> str | None:
    """Why a connection broke at once that got as far as to a handshake."""
    if options.get("connection_class") is not SSLConnection:
        return None
    if isinstance(error, RedisTimeout):
        # It may hang as well, so this may pass.
        raise DestinationDown(f"{error} over TLS; does it offer TLS on this port?") from error
    context = tls_context(options["ssl_ca_certs"], options["ssl_certfile"], options["ssl_keyfile"])
    context.check_hostname = options["ssl_check_hostname"]
    return tls_verdict(options["host"], options.get("port", 6379), context)


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)
