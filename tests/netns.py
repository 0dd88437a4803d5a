"""Two network namespaces with a router between them: cut there, a link is silent, and neither end is told."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NEAR, FAR = "10.213.0.2", "10.213.1.2"
_LINKS = {"near": ("10.213.0.1/24", f"{NEAR}/24"), "far": ("10.213.1.1/24", f"{FAR}/24")}
_CLONE_NEWNET = 0x40000000
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Link:
    """`name` is the first part of the names of its namespaces."""

    name: str

    @contextmanager
    def inside(self, end: str) -> Iterator[None]:
        """This thread, and the threads and processes that it starts, are there meanwhile; a socket stays there."""
        with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{self.name}-{end}") as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(here.fileno())

    def cut(self) -> None:
        self._forward(False)

    def mend(self) -> None:
        self._forward(True)

    def _forward(self, on: bool) -> None:
        with self.inside("router"):
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1" if on else "0")


@contextmanager
def open_link() -> Iterator[Link]:
    link = Link(f"outspark-{os.getpid()}-{next(_numbers)}")
    spaces = {end: f"{link.name}-{end}" for end in ("router", "near", "far")}
    try:
        for space in spaces.values():
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
        for end, (gate, address) in _LINKS.items():
            router, space = spaces["router"], spaces[end]
            _ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", end, "netns", router)
            for where, device, own in ((space, "eth0", address), (router, end, gate)):
                _ip("-n", where, "address", "add", own, "dev", device)
                _ip("-n", where, "link", "set", device, "up")
            _ip("-n", space, "route", "add", "default", "via", gate.partition("/")[0])
        link.mend()
        yield link
    finally:
        for space in spaces.values():
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def lack() -> str | None:
    """What this machine lacks for it, in one line, or None."""
    try:
        with open_link():
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces need Linux, root and the program ip ({error})"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
