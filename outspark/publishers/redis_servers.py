"""Which Redis server takes a stream: the one there is, or the node of a cluster that owns the stream's slot.

Nobody has to say that it is a cluster: the first MOVED tells, and the map of its slots is read then.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, ResponseError

from outspark.errors import DestinationDown
from outspark.publishers.redis_node import Address, Node

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
        """Where the stream lives; None stands for the first server that answers."""
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

    def learn(self, moved: Iterable[MovedError], deadline: float) -> None:
        """Where slots are now: all that a server knows, and on top of it what we were told just now."""
        home, node = self._open_home(deadline)
        try:
            for first, last, master, *_ in node.request("CLUSTER", "SLOTS", deadline=deadline):
                address = Address((master[0] or b"").decode() or home.host, master[1])
                self._slots.update(dict.fromkeys(range(first, last + 1), address))
        except ResponseError:
            pass  # a user that may write need not be allowed to ask; each MOVED teaches one slot
        for error in moved:
            self._slots[error.slot_id] = address_in(error, home)
        # A server that was configured may be the one that fails; then another one knows where the slots went.
        for address in set(self._slots.values()):
            self._seeds.setdefault(address, self._options_for(address))

    def drop_stale(self) -> None:
        """Forget connections that the other side closed while nothing was under way."""
        self._nodes = {address: node for address, node in self._nodes.items() if node.still_there()}

    def check(self, deadline: float) -> None:
        self.drop_stale()
        self._open_home(deadline)
        for node in self._nodes.values():
            node.check(deadline)

    def start_over(self) -> None:
        """Let go of all, and begin with another server next time, if there are several."""
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
    """A server that does not know its own name leaves it out: then it is the host that was asked."""
    return Address(redirect.host.strip("?") or asked.host, redirect.port)
