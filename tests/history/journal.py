"""What lanes really did, in the order in which they did it: one line a deed, in a file that survives their death."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from uuid import UUID

Deed = Literal["claimed", "delivered", "failed", "dead", "down", "died", "sent", "acked"]
"""The last two only where a real broker stands behind: handed to its client, and acknowledged by it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`process` is one shift of one lane; `batch` counts its claims; `attempts` is what the claimed row said;
    `why` is what a real broker's client said."""

    process: str
    batch: int
    event: UUID
    deed: Deed
    attempts: int
    at: float
    why: str = ""

    @property
    def send(self) -> str:
        """Names the one sending of the event that this line is about."""
        return send_name(self.process, self.batch, self.event)


def send_name(process: str, batch: int, event: UUID | str) -> str:
    return f"{process}/{batch}/{event}"


class Journal:
    """Lines are appended with one write each, so those of several processes never mix and their order is real."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_RDWR, 0o600)

    def write(
        self, process: str, batch: int, event: UUID | str, deed: Deed, attempts: int, why: str = ""
    ) -> None:
        entry = asdict(Entry(process, batch, UUID(str(event)), deed, attempts, time.time(), why))
        os.write(self._file, json.dumps(entry, default=str).encode() + b"\n")

    @property
    def size(self) -> int:
        return os.fstat(self._file).st_size

    def read(self, start: int = 0, end: int | None = None) -> list[Entry]:
        """From the beginning, or from an earlier `size` on; up to another one, or to the end."""
        text = os.pread(self._file, (self.size if end is None else end) - start, start)
        lines = [json.loads(line) for line in text.splitlines()]
        return [Entry(**{**line, "event": UUID(line["event"])}) for line in lines]

    def close(self) -> None:
        os.close(self._file)


class Tries:
    """How often an event has not passed so far, by the journal; it reads only what is new."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._read = 0
        self._counts: Counter[UUID] = Counter()

    def of(self, event: UUID) -> int:
        start, self._read = self._read, self._journal.size
        if self._read > start:
            lines = self._journal.read(start, self._read)
            self._counts.update(line.event for line in lines if line.deed in ("failed", "died", "dead"))
        return self._counts[event]
