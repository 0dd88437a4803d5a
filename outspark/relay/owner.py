"""Who owns a slot, written so that the next owner can tell whether the last one can still be publishing."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FORM = re.compile(
    r"(?P<relay>.*) instance=(?P<instance>\S+) lane=(?P<lane>\d+) host=(?P<host>\S+) pid=(?P<pid>\d+)"
    r"(?: slots=(?P<slots>\d+))?"
)


@dataclass(frozen=True, slots=True)
class Owner:
    relay: str
    instance: str
    lane: int
    host: str
    pid: int
    slots: int | None = None
    """Into how many slots it split the keys."""

    @classmethod
    def here(cls, relay: str, instance: str, lane: int) -> Owner:
        return cls(relay, instance, lane, _host(), os.getpid())

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        match = _FORM.fullmatch(text)
        if match is None:
            return None
        slots = int(match["slots"]) if match["slots"] else None
        return cls(
            match["relay"], match["instance"], int(match["lane"]), match["host"], int(match["pid"]), slots
        )

    def __str__(self) -> str:
        slots = f" slots={self.slots}" if self.slots is not None else ""
        return (
            f"{self.relay} instance={self.instance} lane={self.lane} host={self.host} pid={self.pid}{slots}"
        )

    def has_ended(self) -> bool:
        """True only when it is certain that this owner publishes nothing any more.

        A process of ours hosts one lane at a time, so an owner in this very process has ended; so has one whose
        process is gone. Of another machine nothing is known.
        """
        if self.host != _host():
            return False
        return self.pid == os.getpid() or not _alive(self.pid)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """A killed process keeps its number until its parent has taken note; it does nothing any more."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return False


def _host() -> str:
    """Host name and, where the system has them, the namespace of process ids and the boot of the kernel.

    Two containers share no pids, and neither do two machines that were given the same name.
    """
    try:
        namespace = os.readlink("/proc/self/ns/pid").removeprefix("pid:").strip("[]")
    except OSError:
        namespace = "-"
    return f"{socket.gethostname()}/{namespace}/{_boot()}"


@cache
def _boot() -> str:
    try:
        return BOOT_ID.read_text().strip() or "-"
    except OSError:
        return "-"
