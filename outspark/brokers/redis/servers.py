"""The Redis servers behind a destination: a single node, a cluster, or the primary that sentinels name."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from redis.connection import AbstractConnection, Connection, SSLConnection
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    MovedError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeout

from outspark.brokers.options import tls_context
from outspark.brokers.redis.wire import MAX_VALUE, outcome, refuses_xadd, said
from outspark.errors import DestinationDown, DestinationError
from outspark.outcome import Retry
from outspark.tls import tls_fault, tls_verdict

# Writes nothing, since the stream does not exist, but Redis refuses it like any XADD while it accepts no writes.
_PROBE = ("XADD", "outspark:check", "NOMKSTREAM", "*", "check", "1")
_ABORT_ON_CLOSE = struct.pack("ii", 1, 0)


class Address(NamedTuple):
    host: str
    port: int


class Node:
    """Connects on construction; DestinationDown or DestinationError if that fails.

    `max_value` is the largest payload that the server accepts.
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
            except ResponseError as error:  # the database does not exist, or the user may not use it
                raise DestinationError(str(error)) from error
            except (RedisError, OSError) as error:
                if fault := tls_fault(error) or _tls_verdict(options, error):
                    raise DestinationError(fault) from error
                raise
            # `close` must drop the kernel's send buffer: its messages were answered with Retry, and must not reach
            # Redis after that.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT_ON_CLOSE)
            self._introduce(name, deadline)

    def add(self, index: int | None, command: bytes) -> None:
        """Queue a command for the next `flush`. `index` is None if its answer is to be ignored."""
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
        """Yield each message's error, or None if accepted. `but_last` leaves answers to the last flush unread."""
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

    def is_connected(self) -> bool:
        """Check an idle connection: it is readable only if the server has closed it."""
        try:
            fresh = not self._connection.can_read(0)
        except RedisError:
            fresh = False
        if not fresh:
            self.close()
        return fresh

    def request(self, *words: str, deadline: float) -> Any:
        """Send one command and read its answer; no other answer may be outstanding."""
        with self._sorting_errors():
            self._socket.settimeout(_left(deadline))
            self._connection.send_command(*words, check_health=False)
            return self._connection.read_response(timeout=_left(deadline))

    def check(self, deadline: float) -> None:
        """DestinationDown if Redis accepts no writes now, DestinationError if it never accepts XADD from this user."""
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
        """Set the connection's name and read the payload limit; both are optional, as the user may lack permission."""
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
    # RESP2 has no push messages between answers, and every Redis version with streams supports it.
    return kind(**given, protocol=2, socket_timeout=timeout, socket_connect_timeout=timeout)


def _tls_verdict(options: Mapping[str, Any], error: Exception) -> str | None:
    """Why a connection broke during the TLS handshake."""
    if options.get("connection_class") is not SSLConnection:
        return None
    if isinstance(error, RedisTimeout):
        # The server may only be slow, so a later try may succeed.
        raise DestinationDown(f"{error} over TLS; does it offer TLS on this port?") from error
    context = tls_context(options["ssl_ca_certs"], options["ssl_certfile"], options["ssl_keyfile"])
    context.check_hostname = options["ssl_check_hostname"]
    return tls_verdict(options["host"], options.get("port", 6379), context)


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)


Options = Mapping[str, Any]


class Servers:
    """The connections of one publisher. `seeds` are the client's options for each server that was configured."""

    def __init__(self, seeds: Sequence[Options], name: str, connect_timeout: float | None) -> None:
        self._seeds: dict[Address, Options] = {
            Address(seed.get("host", "localhost"), seed.get("port", 6379)): seed for seed in seeds
        }
        self._any_options = seeds[0]
        self._name = name
        self._connect_timeout = connect_timeout
        self._nodes: dict[Address, Node] = {}
        self._home: Address | None = None
        self._slots: dict[int, Address] = {}

    def address_of(self, stream: str) -> Address | None:
        """The server of the stream; None for the first server that answers."""
        if not self._slots:
            return self._home
        return self._slots.get(key_slot(stream.encode()), self._home)

    def open(self, address: Address | None, deadline: float) -> tuple[Address, Node]:
        if address is None:
            return self._open_home(deadline)
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = self._connect(self._options_for(address), deadline)
        return address, node

    def update_slots(self, moved: Iterable[MovedError], deadline: float) -> None:
        """Read the slot table from a server, then apply the MOVED errors, which are newer."""
        home, node = self._open_home(deadline)
        try:
            for first, last, master, *_ in node.request("CLUSTER", "SLOTS", deadline=deadline):
                address = Address((master[0] or b"").decode() or home.host, master[1])
                self._slots.update(dict.fromkeys(range(first, last + 1), address))
        except ResponseError:
            pass  # the user may lack permission; then each MOVED error updates one slot
        for error in moved:
            self._slots[error.slot_id] = address_in(error, home)
        # If the configured servers fail, another node of the cluster can report where the slots moved.
        for address in set(self._slots.values()):
            self._seeds.setdefault(address, self._options_for(address))

    def drop_stale(self) -> None:
        """Drop connections that a server closed while they were idle."""
        self._nodes = {address: node for address, node in self._nodes.items() if node.is_connected()}

    def check(self, deadline: float) -> None:
        self.drop_stale()
        self._open_home(deadline)
        for node in self._nodes.values():
            node.check(deadline)

    def start_over(self) -> None:
        """Close all connections and try another server first next time, if there are several."""
        self.close()
        first = next(iter(self._seeds))
        self._seeds[first] = self._seeds.pop(first)

    def close(self) -> None:
        nodes, self._nodes = self._nodes, {}
        self._home = None
        self._slots.clear()
        for node in nodes.values():
            node.close()

    def _open_home(self, deadline: float) -> tuple[Address, Node]:
        if self._home is not None and self._home in self._nodes:
            return self._home, self._nodes[self._home]
        down = DestinationDown("timed out")
        for address, seed in list(self._seeds.items()):
            try:
                self._nodes[address] = self._connect(seed, deadline)
            except DestinationDown as error:
                down = error
                continue
            self._home = address
            return address, self._nodes[address]
        raise down

    def _connect(self, options: Options, deadline: float) -> Node:
        if self._connect_timeout is not None:
            deadline = min(deadline, time.monotonic() + self._connect_timeout)
        return Node(options, self._name, deadline)

    def _options_for(self, address: Address) -> Options:
        return {**self._any_options, "host": address.host, "port": address.port}


def address_in(redirect: AskError, asked: Address) -> Address:
    """The address in a redirect. A server that does not know its own host name omits it; then it is `asked`'s host."""
    return Address(redirect.host.strip("?") or asked.host, redirect.port)
