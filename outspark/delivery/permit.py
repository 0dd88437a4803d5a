"""What a dispatcher asks for each time before a destination gets messages: whether it may still publish them."""

from __future__ import annotations

from typing import Final, Protocol


class Permit(Protocol):
    def check(self) -> None:
        """Raise to stop: then nothing more goes out."""
        ...


class _Unconditional:
    def check(self) -> None:
        return


UNCONDITIONAL: Final[Permit] = _Unconditional()
"""For a publisher of events that nobody else works on."""
