"""What lanes really did, in the order in which they did it: one line a deed, in a file that survives their death."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from uuid import UUID

Deed = Literal["claimed", "delivered", "failed", "dead", "down", "died"]


@dataclass(frozen=True, slots=True)
class Entry:
    """`process` is one shift of one lane; `batch` counts its claims; `attempts` is what the claimed row said."""

    process: str
    batch: int
    event: UUID
    deed: Deed
    attempts: int
    at: float


class Journal:
    """Lines are appended with one write each, so those of several processes never mix and their order is real."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_RDWR, 0o600)
        self._path = path

    def write(self, process: str, batch: int, event: UUID | str, deed: Deed, attempts: int) -> None:
        entry = asdict(Entry(process, batch, UUID(str(event)), deed, attempts, time.time()))
        os.write(self._file, json.dumps(entry, default=str).encode() + b"\n")

    def read(self) -> list[Entry]:
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        return [Entry(**{**line, "event": UUID(line["event"])}) for line in lines]

    def close(self) -> None:
        os.close(self._file)
