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
"""For events that no other process works on."""
