"""What lanes of inboxes really did, in the order in which they did it, in a file that survives their death."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Deed = Literal["polled", "held", "acknowledged", "begun", "died"]


@dataclass(frozen=True, slots=True)
class Entry:
    """`process` is one shift of one lane. `state` is what the table said of a message when it was acknowledged:
    a status, or nothing where it had no row."""

    process: str
    group: str
    name: str
    deed: Deed
    state: str = ""


class Journal:
    """Lines are appended with one write, so those of several processes never mix and their order is real."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_RDWR, 0o600)

    def write(self, entries: Sequence[Entry]) -> None:
        lines = "".join(json.dumps(asdict(entry)) + "\n" for entry in entries)
        if lines:
            os.write(self._file, lines.encode())

    def read(self) -> list[Entry]:
        text = os.pread(self._file, os.fstat(self._file).st_size, 0)
        return [Entry(**json.loads(line)) for line in text.splitlines()]

    def close(self) -> None:
        os.close(self._file)
