"""Ctrl-C and SIGTERM: they end the demo once, but interrupt neither the start of a server nor the clean-up."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """Not an Exception: nothing but the command itself may handle it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interruptions:
    """While entered, the first signal raises Interrupted in the main thread, and later ones are ignored."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: int | None = None

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._hear) for number in _NUMBERS}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A signal that comes meanwhile takes effect at the end, because a half-started server could not be stopped."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._waiting is not None:
            self._hear(self._waiting, None)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._held:
            self._waiting = number
            return
        for each in _NUMBERS:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)
