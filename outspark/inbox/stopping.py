"""How a loop is told to end: a `threading.Event` does it, and so does whatever looks like one."""

from __future__ import annotations

from typing import Protocol


class Stopping(Protocol):
    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...
